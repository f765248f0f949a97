"""The verbs of `muxfleet`. What one needs is imported when it is asked for: that takes seconds for some."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

SUMMARIES: Mapping[str, str] = {
    "demo": "Serve three small models on this machine and replay a request trace against them.",
    "up": "Start a fleet here, or on the cluster at RAY_ADDRESS, and serve until Ctrl-C.",
    "apply": "Change the running fleet of that name, here or on the cluster at RAY_ADDRESS, to what the file says.",
    "cordon": "Place nothing new on a unit or a node; what is there stays and is served.",
    "drain": "Move all models away from a unit or a node, and place nothing new there.",
    "uncordon": "Let a unit or a node that was cordoned or drained take models again.",
    "rollout": "Replace the pods of a RayService whose templates changed, one by one, in the running Ray cluster.",
    "pull": "Download models into Hugging Face's cache of this machine, where its units look for them.",
    "plan": "Print which models sit on which units or take turns there, and what they will serve.",
    "explain": "Say why a model sits where it sits, and what every other unit would have given it.",
    "render": "Print the Serve config of a fleet, for `serve deploy`.",
    "schema": "Print the JSON schema of fleet files, for editors.",
    "profile": "Measure how long an engine's launches take here, and fit the latency models to it.",
    "chat": "Talk to a model of a running fleet, or of any OpenAI-compatible endpoint, until Ctrl-D.",
    "bench": "Replay a trace against an endpoint at its arrival times, never waiting for earlier answers.",
    "simulate": "Run a fleet in virtual time: its scheduler, router and placement on a latency model.",
    "compare": "Simulate a figure of a paper, and print what was published beside it.",
    "compile": (
        "Compile what simulations and engines on cores spend their time in, once for a version: "
        "simulate and compare then use it, and with MUXFLEET_COMPILED=1 engines do."
    ),
    "report": (
        "Write one self-contained page about runs of simulate, bench or compare: plots, tables, the fleet, the command."
    ),
    "status": "Print models and units of a running fleet, and why models were moved.",
    "top": "Watch models, units, partitions, quotas and attainment of a running fleet until Ctrl-C.",
    "incident": (
        "Tell in order what happened to a running fleet: plans, moves, loads, losses, leases, restarts and missed SLOs."
    ),
    "trace-decisions": (
        "Print what the schedulers of a running fleet decided lately, what they expected, and what it took."
    ),
    "traces": "Look into request traces.",
    "keys": "API keys of a fleet.",
}
"""By verb, the first sentence of its help: `muxfleet --help` prints them without importing any verb."""

_MODULES: Mapping[str, str] = {"schema": "render", "uncordon": "cordon"}  # of verbs that share another's


class Verbs(TyperGroup):
    """The class of the whole command line."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - what Typer's own takes
        super().__init__(**settings)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer keeps these types to itself
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


class _Commands(MutableMapping[str, Any]):
    """By verb, its command."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, verb: str) -> Any:  # noqa: ANN401 - as above
        if verb not in self._loaded:
            self._loaded[verb] = _loaded(verb)
        return self._loaded[verb]

    def __setitem__(self, verb: str, command: Any) -> None:  # noqa: ANN401 - as above
        self._loaded[verb] = command

    def __delitem__(self, verb: str) -> None:
        del self._loaded[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


def _loaded(verb: str) -> Any:  # noqa: ANN401 - as above
    """Raises KeyError for what is no verb."""
    if verb not in SUMMARIES:
        raise KeyError(verb)
    name = verb.replace("-", "_")
    found = getattr(import_module(f"deploy.commands.{_MODULES.get(name, name)}"), name)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=verb)
        return typer.main.get_group(alone).commands[verb]
    alone.command(verb, cls=Verb)(found)
    return typer.main.get_command(alone)


class Verb(TyperCommand):
    """A command whose examples stay in lines of their own, however narrow the terminal: they are to be copied."""

    def __init__(self, *args: Any, **parameters: Any) -> None:  # noqa: ANN401 - what Typer's own takes
        super().__init__(*args, **parameters)
        if self.help is not None:
            self.help = self.help.replace("\n\nExample: ", "\n\n\b\nExample: ")
