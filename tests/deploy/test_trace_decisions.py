import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from fleet_model import FakeUnit, fleet_status

from deploy.cli import main
from deploy.serve.controller import Controller
from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt

Run = Callable[..., tuple[int, str, str]]

REFUSAL = '{"error": {"message": "Unit \'u1\' does not answer now; retry in 5 s.", "type": "x", "code": null}}'


def launch(index: int, **fields: object) -> Decision:
    at_s = float(index)
    base = {"kind": DecisionKind.DECODE, "model": "a", "num_decoding": 3, "steps": 1, "decode_sms": 4, "prefill_sms": 0}
    times = {"now_s": at_s, "started_s": at_s, "finished_s": at_s + 0.5, "predicted_s": 0.6}
    return Decision(index=index, **{**base, **times, **fields})


def excerpt(*decisions: Decision) -> LogExcerpt:
    return LogExcerpt(now_s=100.0, unix_s=1e9, decisions=decisions)


class Fleet(ThreadingHTTPServer):
    """A gateway's two paths that the command reads."""

    logs: dict[str, LogExcerpt]
    refusal: tuple[int, str] | None
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Fleet)
        self.server.asked.append(self.path)
        if self.path == "/fleet":
            status, body = (
                200,
                msgspec.json.encode(fleet_status(FakeUnit(unit_id="u1"), FakeUnit(unit_id="u2"))).decode(),
            )
        elif self.server.refusal is not None:
            status, body = self.server.refusal
        else:
            unit = self.path.split("/")[2]
            status, body = 200, msgspec.json.encode(self.server.logs[unit]).decode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(("127.0.0.1", 0), Handler) as server:
        server.logs = {"u1": excerpt(*(launch(i) for i in range(60))), "u2": excerpt()}
        server.refusal = None
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def trace(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main(["trace-decisions", f"http://127.0.0.1:{fleet.server_address[1]}", *map(str, arguments)])
        out, err = capsys.readouterr()
        return int(exited.value.code or 0), out, err

    return run


def test_trace_decisions__no_options__prints_the_newest_of_every_unit(trace: Run, fleet: Fleet) -> None:
    code, out, _ = trace()

    assert code == 0
    assert fleet.asked == ["/fleet", "/units/u1/decisions?last=50", "/units/u2/decisions?last=50"]
    assert "u2, no decisions yet" in out
    lines = [line.split() for line in out.splitlines() if line.startswith("decode a x1")]
    assert len(lines) == 50
    assert lines[-1][3:] == ["41.000", "s", "0+4", "3", "0", "600.00", "ms", "500.00", "ms", "+20%"]


def test_trace_decisions__shares__are_of_what_is_logged(trace: Run, fleet: Fleet) -> None:
    fleet.logs["u1"] = excerpt(launch(0), launch(1, ready_s=0.5))

    _, out, _ = trace("--unit", "u1")

    assert "u1, 2 decisions in 1.50 s" in out
    (decode,) = [
        line.split() for line in out.splitlines() if line.startswith("decode ") and "%" in line and "ms" not in line
    ]
    assert decode == ["decode", "66.7%", "33.3%", "33.3%"]


def test_trace_decisions__every_kind__has_a_line(trace: Run, fleet: Fleet) -> None:
    chunks = ((0, 20),)
    fleet.logs["u1"] = excerpt(
        launch(0, kind=DecisionKind.PREFILL, chunks=chunks, last_layer=4, batch_id=1, num_decoding=0, steps=0),
        launch(1, kind=DecisionKind.MIXED, chunks=chunks),
        Decision(index=2, now_s=2.0, kind=DecisionKind.PARTITION, prefill_sms=3, decode_sms=1),
        Decision(index=3, now_s=3.0, kind=DecisionKind.DROP, prefill_sms=3, decode_sms=1, batch_id=1),
        launch(4, failed=True),
        launch(5, started_s=None, finished_s=None),
    )

    code, out, _ = trace("--unit", "u1")

    assert code == 0
    for words in (
        "prefill a batch 1 layers [0,4) tokens 0+20",
        "mixed a tokens 0+20 decodes 3",
        "partition prefill 3 decode 1",
        "drop batch 1",
        "failed",
        "running",
    ):
        assert words in out


def test_trace_decisions__files__hold_everything(trace: Run, fleet: Fleet, tmp_path: Path) -> None:
    chrome, plain = tmp_path / "chrome.json", tmp_path / "plain.json"

    code, out, _ = trace("--chrome", chrome, "--json", plain)

    assert code == 0
    assert fleet.asked[1:] == ["/units/u1/decisions?last=4096", "/units/u2/decisions?last=4096"]
    assert out.count("decode a x1") == 50
    assert sum(event["ph"] == "X" for event in json.loads(chrome.read_text())) == 60
    units = json.loads(plain.read_text())["units"]
    assert len(units["u1"]["decisions"]) == 60
    assert units["u1"]["decisions"][0]["kind"] == "decode"
    assert units["u1"]["lanes"]["decode"]["busy"] == pytest.approx(30 / 59.5)


def test_trace_decisions__last__is_asked_for(trace: Run, fleet: Fleet, tmp_path: Path) -> None:
    trace("--unit", "u2", "--last", "3", "--json", tmp_path / "x.json")

    assert fleet.asked == ["/fleet", "/units/u2/decisions?last=3"]


def test_trace_decisions__unknown_unit__is_one_line_and_code_2(trace: Run) -> None:
    code, out, err = trace("--unit", "u9")

    assert (code, out) == (2, "")
    assert err == "muxfleet: the fleet has no unit 'u9'; it has u1, u2\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((503, REFUSAL), "Unit 'u1' does not answer now; retry in 5 s."),
        ((404, "<html>"), "/units/u1/decisions answers 404"),
        ((200, '{"decisions": 1}'), "/units/u1/decisions is not a decision log of this version"),
    ],
)
def test_trace_decisions__refused__is_one_line_and_code_1(
    trace: Run, fleet: Fleet, answer: tuple[int, str], reason: str
) -> None:
    fleet.refusal = answer

    code, out, err = trace()

    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("muxfleet: no fleet answers at http://127.0.0.1:")
    assert reason in err


@pytest.mark.parametrize("last", ["0", "4097", "x"])
def test_trace_decisions__bad_number__is_refused(trace: Run, fleet: Fleet, last: str) -> None:
    code, _, err = trace("--last", last)

    assert code == 2
    assert "--last" in err
    assert fleet.asked == []


def test_trace_decisions__no_fleet_there__is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["trace-decisions", "http://127.0.0.1:9"])

    assert exited.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1


async def test_controller__decisions__are_those_of_the_units_pool(tmp_path: Path) -> None:
    calls = []

    async def read(pool: str, unit_id: str, last: int) -> bytes:
        calls.append((pool, unit_id, last))
        return b"{}"

    controller = Controller(token="t", read_decisions=read)
    assert await controller.decisions("u", 5) is None  # before it knows anything
    await controller.reconfigure({"models": [], "policy": "mux", "expected_units": {"p": 1}})
    await controller.heartbeat(FakeUnit(unit_id="u").report())

    assert await controller.decisions("u", 5) == b"{}"
    assert await controller.decisions("another", 5) is None
    assert calls == [("p", "u", 5)]
