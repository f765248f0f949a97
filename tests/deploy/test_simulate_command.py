"""`muxfleet simulate` says what it was given, and where its figures stand on little."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deploy.cli import main
from deploy.commands.few_requests import few_requests_line

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated-8gpu.yaml"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return command


def trace(path: Path, arrivals_s: list[float], models: list[str | None]) -> Path:
    n = len(arrivals_s)
    columns = {"arrival_s": arrivals_s, "input_tokens": [100] * n, "output_tokens": [5] * n, "model": models}
    pq.write_table(pa.table(columns), path)
    return path


def test_simulate__trace_of_other_models__says_who_gets_their_requests(run: Run, tmp_path: Path) -> None:
    file = trace(tmp_path / "t.parquet", [0.0, 1.0, 2.0], ["gpt-9", "llama-8b", "opus"])
    code, out, _ = run("simulate", EXAMPLE, "--trace", file)
    assert code == 0
    assert "3 requests of t, 1.50/s over 2 s" in out
    assert "the fleet has no gpt-9, opus: requests of the trace for them go to the fleet's models" in out


@pytest.mark.parametrize(("count", "said"), [(1, "1 request of t, all at once"), (4, "4 requests of t, all at once")])
def test_simulate__requests_all_at_once__have_no_rate(run: Run, tmp_path: Path, count: int, said: str) -> None:
    file = trace(tmp_path / "t.parquet", [3.0] * count, ["llama-8b"] * count)
    _, out, _ = run("simulate", EXAMPLE, "--trace", file)
    assert said in out
    assert "the fleet has no" not in out


def test_simulate__few_requests__p99_is_said_to_be_the_slowest(run: Run, tmp_path: Path) -> None:
    file = trace(tmp_path / "t.parquet", [0.0, 1.0, 2.0], ["llama-8b", "llama-8b", "llama-70b"])
    found = tmp_path / "run.json"
    _, out, _ = run("simulate", EXAMPLE, "--trace", file, "--json", found)
    total = json.loads(found.read_text())["deployments"]["mux"]["total"]["ttft_s"]

    assert "fewer than 100 requests ended, so TTFT p99 is nearly the slowest one: llama-70b (1), llama-8b (2)" in out
    assert total["p99"] > total["mean"] > total["p50"]


def test_few_requests__many_models__are_counted_and_enough_of_them_named() -> None:
    assert few_requests_line({"a": 100, "b": 0}) is None
    line = few_requests_line({f"m{i}": 1 + i for i in range(200)})
    assert line is not None
    assert line.endswith("m0 (1), m1 (2), m2 (3), m3 (4), m4 (5) and 94 more")


def test_simulate__nobody_is_asked__says_which_key_to_raise(run: Run, tmp_path: Path) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    for model in fleet["models"]:
        model["source"] = str(EXAMPLE.parent / model["source"])
        model["demand"]["rate_per_s"] = 0
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    code, _, err = run("simulate", tmp_path / "fleet.yaml", "--rate", 5)
    assert code == 2
    assert "no model of the fleet file has demand.rate_per_s above 0; raise one, or give a trace" in err


@pytest.mark.parametrize("place", ["a-file", "a-file/plots"])
def test_simulate__plots_have_no_place_to_go__is_said_before_the_work(run: Run, tmp_path: Path, place: str) -> None:
    (tmp_path / "a-file").write_text("")
    code, out, err = run("simulate", tmp_path / "none.yaml", "--plot", tmp_path / place)
    assert (code, out) == (2, "")
    assert err == (
        f"muxfleet: {tmp_path / place}: cannot be written: {tmp_path / 'a-file'} is no folder; name another\n"
    )
