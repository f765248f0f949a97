"""`muxfleet chat` at an endpoint that answers as a test says."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.cli import main
from deploy.commands import chat as chat_module
from deploy.inspection.chat_stream import ChatPiece

MODELS = {"data": [{"id": "small", "status": "asleep"}, {"id": "large", "status": "ready"}]}


def said(text: str, **more: object) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": None}]}


def ended(reason: str, tokens: int) -> list:
    return [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": {"completion_tokens": tokens}},
        "[DONE]",
    ]


class Endpoint(ThreadingHTTPServer):
    """`answers` are what chats get, one after the other: events, or a status and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list = []
        self.asked: list[dict] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        self._reply(200, json.dumps(MODELS))

    def do_POST(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        answer = self.server.answers.pop(0)
        if isinstance(answer, tuple):
            return self._reply(*answer)
        lines = (
            e if isinstance(e, str) and e[0] == ":" else f"data: {e if e == '[DONE]' else json.dumps(e)}"
            for e in answer
        )
        return self._reply(200, "".join(f"{line}\n\n" for line in lines))

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def chat(endpoint: Endpoint, *options: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["chat", endpoint.url, *options])
    return stopped.value.code


class Typed:
    """A terminal on which these lines are typed."""

    def __init__(self, *lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lines = iter(lines)
        monkeypatch.setattr("sys.stdin", self)
        monkeypatch.setattr("builtins.input", self.input)

    def isatty(self) -> bool:
        return True

    def input(self, prompt: str) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def test_chat__prompt__pipe_gets_the_answer_only(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.answers = [[said("", reasoning_content="Paris?"), said("It is "), said("Paris."), *ended("stop", 3)]]

    options = ["--system", "Be short.", "--max-tokens", "9", "--temperature", "0", "--api-key", "k"]
    code = chat(endpoint, "-p", "What is the capital?", *options)

    assert (code, capsys.readouterr()) == (0, ("It is Paris.\n", ""))
    (asked,) = endpoint.asked
    assert asked["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What is the capital?"},
    ]
    assert (asked["model"], asked["max_tokens"], asked["temperature"], asked["stream"]) == ("large", 9, 0, True)
    assert endpoint.keys == ["Bearer k"]


@pytest.mark.parametrize("options", [(), ("-p", "-")])
def test_chat__standard_input_is_no_terminal__it_is_the_question(
    options: tuple[str, ...],
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a diff: \xff\n")))
    endpoint.answers = [[said("fine\n"), *ended("stop", 1)]]

    assert chat(endpoint, "--model", "small", *options) == 0

    assert capsys.readouterr().out == "fine\n"
    assert endpoint.asked[0]["model"] == "small"
    assert endpoint.asked[0]["messages"] == [{"role": "user", "content": "a diff: \N{REPLACEMENT CHARACTER}"}]


def test_chat__nothing_in_standard_input__says_so(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)

    assert chat(endpoint) == 2

    assert "--prompt (nothing): it is empty; ask something" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, '{"error": {"message": "messages: too long"}}'), "large does not answer: messages: too long"),
        ((502, ""), "/v1/chat/completions answers 502"),
        ([said("It"), {"error": {"message": "the unit is lost"}}], "large does not answer: the unit is lost"),
        ([said("It is ")], "the stream ended in the middle of the answer"),
        (["<html>"], "is no event of a chat"),
        ([{"choices": 3}], "is no event of a chat"),
    ],
)
def test_chat__no_answer__says_why(
    answer: object, reason: str, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answers = [answer]

    assert chat(endpoint, "-p", "Hi") == 1

    err = capsys.readouterr().err
    assert reason in err
    assert len(err.splitlines()) == 1


def test_chat__unknown_model__names_the_known_ones(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(endpoint, "-m", "largr", "-p", "Hi") == 2

    assert "--model largr: did you mean large? the endpoint serves small, large" in capsys.readouterr().err


def test_chat__conversation__remembers_until_it_is_cleared(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = (503, '{"error": {"message": "no room"}}')
    endpoint.answers = [refused, *([[said(text), *ended("stop", 1)] for text in "ABC"])]
    Typed("lost", "one", "", "two", "/model nobody", "/model small", "/clear", "three", monkeypatch=monkeypatch)

    assert chat(endpoint, "--system", "S") == 0

    asked = [(a["model"], [m["content"] for m in a["messages"]]) for a in endpoint.asked]
    assert asked == [
        ("large", ["S", "lost"]),
        ("large", ["S", "one"]),
        ("large", ["S", "one", "A", "two"]),
        ("small", ["S", "three"]),
    ]
    out = capsys.readouterr().out
    assert "large does not answer: no room" in out
    assert "--model nobody: the endpoint serves small, large" in out


def test_chat__answer_is_stopped__what_came_is_remembered(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = []

    def pieces(url: str, *, messages: list, **_: object) -> Iterator[ChatPiece]:
        histories.append([m["content"] for m in messages])
        yield ChatPiece(text="half of ")
        if len(histories) == 1:
            raise KeyboardInterrupt
        yield ChatPiece(text="it", finish_reason="stop")

    monkeypatch.setattr(chat_module, "chat_pieces", pieces)
    Typed("one", "two", "/exit", "never", monkeypatch=monkeypatch)

    assert chat(endpoint) == 0

    assert histories == [["one"], ["one", "half of ", "two"]]
    assert capsys.readouterr().out.endswith("half of it\n")


def test_chat__on_a_terminal__shows_thoughts_figures_and_no_control_characters(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    loading = ": loading large 43 %, ready in about 12 s"
    endpoint.answers = [[loading, said("", reasoning="Hm"), said("\x1b]52;c;x\x07"), *ended("length", 7)]]

    assert chat(endpoint, "-p", "Hi") == 0

    out = capsys.readouterr().out
    assert "loading large 43 %, ready in about 12 s" in out
    assert "Hm" in out
    assert "\x1b]52" not in out
    assert "7 tokens, the first after " in out
    assert "cut off: it had --max-tokens, or the context is full" in out
