"""muxfleet chat"""

import contextlib
import difflib
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.chat_screen import AnswerFigures, show_answer, show_aside
from deploy.commands.gateway_url import DEFAULT_URL, GatewayUrl
from deploy.commands.terminal import terminal
from deploy.environment import api_key as known_api_key
from deploy.errors import ChatFailed, FleetUnreachable, OptionNotUsable
from deploy.inspection.chat_stream import chat_pieces
from deploy.inspection.served_models import ServedModel, served_models

_HELP = "/model NAME talks to another one, /clear forgets what was said, /exit or Ctrl-D ends; Ctrl-C stops an answer"


def chat(
    url: GatewayUrl = DEFAULT_URL,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Default: the first that is ready.")] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Ask this, print the answer and end; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message, said before everything else.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Of an answer. Default: what the context holds.", min=1)
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's own.", min=0.0, max=2.0)] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds of silence until an answer is lost.", min=0.1, max=1e6)
    ] = 300.0,
    api_key: Annotated[str | None, typer.Option(help="Sent as bearer token. Default: MUXFLEET_API_KEY.")] = None,
) -> None:
    """Talk to a model of a running fleet, or of any OpenAI-compatible endpoint, until Ctrl-D.

    Answers go to standard output as they come; thoughts and figures only where that is a terminal. With --prompt, or
    where standard input is no terminal, one question is asked: exit code 1 if it is not answered.

    Example: muxfleet chat http://127.0.0.1:8000 --model demo-llama
    Example: git diff | muxfleet chat --system "Write a commit message." > message.txt
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a diff may hold any bytes
    key = known_api_key(api_key)
    models = served_models(url, api_key=key)
    settings = {"max_tokens": max_tokens, "temperature": temperature}
    talk = _Talk(
        console=terminal(),
        url=url,
        model=_first(models) if model is None else _named(models, model),
        settings={name: value for name, value in settings.items() if value is not None},
        system=None if system is None else _encodable(system),
        timeout_s=timeout,
        api_key=key,
    )
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    if prompt == "-" or (prompt is None and not is_typed):
        prompt = "" if sys.stdin is None else sys.stdin.read().strip()
    if prompt is not None:
        if not prompt:
            raise OptionNotUsable(option="--prompt", value="(nothing)", remedy="it is empty; ask something")
        talk.ask(_encodable(prompt))
    else:
        _converse(talk, models)


@dataclass(slots=True, kw_only=True)
class _Talk:
    """Holds what was said, and with whom."""

    console: Console
    url: str
    model: str
    settings: Mapping[str, float]
    system: str | None
    timeout_s: float
    api_key: str | None
    said: list[Mapping[str, str]] = field(default_factory=list)

    def clear(self) -> None:
        self.said = []

    def ask(self, prompt: str) -> None:
        """Shows the answer. A question without one is forgotten; of one that is stopped what came stays. Raises
        KeyboardInterrupt, ChatFailed, FleetUnreachable.
        """
        figures = AnswerFigures()
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = [*self.said, {"role": "user", "content": prompt}]
        pieces = chat_pieces(
            self.url,
            model=self.model,
            messages=[*before, *asked],
            settings=self.settings,
            timeout_s=self.timeout_s,
            api_key=self.api_key,
        )
        try:
            with contextlib.closing(pieces):
                show_answer(self.console, self.model, pieces, figures)
        except KeyboardInterrupt:
            if figures.text:
                self.said = [*asked, {"role": "assistant", "content": figures.text}]
            raise
        self.said = [*asked, {"role": "assistant", "content": figures.text}]


def _converse(talk: _Talk, models: Sequence[ServedModel]) -> None:
    with contextlib.suppress(ImportError):  # arrow keys and what was typed before, where Python was built with it
        import readline  # noqa: F401 - `input` finds it
    show_aside(talk.console, f"{talk.model}; {_HELP}")
    while True:
        try:
            line = input(">>> ").strip()
        except EOFError:
            talk.console.print()
            return
        if line in ("/exit", "/quit", "/bye"):
            return
        try:
            _follow(talk, models, line)
        except KeyboardInterrupt:
            show_aside(talk.console, "\nstopped")
        except (ChatFailed, FleetUnreachable, OptionNotUsable) as error:
            talk.console.print(str(error), style="red", soft_wrap=True)


def _follow(talk: _Talk, models: Sequence[ServedModel], line: str) -> None:
    command, _, name = line.partition(" ")
    if command == "/clear":
        talk.clear()
    elif command == "/model":
        talk.model = _named(models, name.strip())
        show_aside(talk.console, talk.model)
    elif command == "/help":
        show_aside(talk.console, _HELP)
    elif line:
        talk.ask(_encodable(line))


def _encodable(text: str) -> str:
    """Returns what JSON can carry: an argument may be no text at all."""
    return text.encode(errors="replace").decode()


def _first(models: Sequence[ServedModel]) -> str:
    return next((m for m in models if m.status in ("ready", None)), models[0]).id


def _named(models: Sequence[ServedModel], name: str) -> str:
    """Raises OptionNotUsable."""
    ids = [m.id for m in models]
    if name not in ids:
        near = difflib.get_close_matches(name, ids, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise OptionNotUsable(option="--model", value=name, remedy=f"{meant}the endpoint serves {', '.join(ids)}")
    return name
