"""Options that cannot both be meant, or that go with another one, are refused before any work is begun."""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

CONTRADICTIONS = {
    "simulate f.yaml --sweep rate=1,2 --rate 3": "--rate 3.0: --sweep tries the rates that it names; drop one",
    "simulate f.yaml --load-speed 3": "--load-speed 3.0: models move with --control-loop only",
    "simulate f.yaml --spread-ticks": "--spread-ticks True: it goes with --trace, which has ticks",
    "explain f.yaml m --plan p.json --solver search": "--solver search: --plan says where models sit already; drop one",
    "explain http://h m --solver search": "--solver search: a running fleet has its own plan; leave it out",
    "explain http://h m --plan p.json": "--plan p.json: a running fleet has its own plan; leave it out",
    "profile --checkpoint m --pool p": "--pool p: pools are a fleet file's; --checkpoint has none",
    "plan f.yaml --attainment 0.9 --what-if rate=x2,nodes.p=+1": (
        "--what-if rate=x2,nodes.p=+1: --attainment looks for the number of nodes itself; leave nodes out"
    ),
    "demo --write w --once": "--write w: it only writes files; leave out --once, --json, --trace and --port",
    "demo --write w --port 80": "--write w: it only writes files; leave out --once, --json, --trace and --port",
}


@pytest.mark.parametrize("given", CONTRADICTIONS)
def test_command__options_that_contradict__are_refused_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text("models: [{id: m, source: org/m}]")

    code, out, err = run(*given.split())

    assert (code, out, err) == (2, "", f"muxfleet: {CONTRADICTIONS[given]}\n")
    assert [file.name for file in tmp_path.iterdir()] == ["f.yaml"]
