"""`muxfleet simulate` says what it was given, and where its figures stand on little."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deploy.commands import simulate as simulate_module
from deploy.commands.table_cells import few_requests_line
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.fleet_run import FleetRun
from pdmux_actor.messages import TokenEvent

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated-8gpu.yaml"
Run = Callable[..., tuple[int, str, str]]


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


def test_simulate__unknown_policy__is_refused_in_one_line_before_anything_is_told(run: Run) -> None:
    code, out, err = run("simulate", EXAMPLE, "--policy", "nosuch")
    assert (code, out) == (2, "")
    assert err.startswith("muxfleet: --policy nosuch: unknown policy")
    assert err.count("\n") == 1


def test_simulate__control_loop_decides_nothing__says_so_without_an_empty_table(run: Run, tmp_path: Path) -> None:
    file = trace(tmp_path / "t.parquet", [0.0, 1.0], ["llama-8b", "llama-8b"])
    _, out, _ = run("simulate", EXAMPLE, "--trace", file, "--control-loop")
    assert "the control loop decided nothing" in out
    assert "decision  why" not in out


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


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_simulate__name_that_no_file_system_takes__is_one_line(run: Run, tmp_path: Path, option: str) -> None:
    place = tmp_path / ("a" * 300)
    code, out, err = run("simulate", tmp_path / "none.yaml", option, place)
    assert (code, out) == (2, "")
    assert err == f"muxfleet: {place}: cannot be written: File name too long\n"


def test_simulate__interrupted_in_the_second_policy__figures_of_the_first_are_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, begun = simulate_module.run_fleet_divided, []

    def interrupted(*arguments: Any, **options: Any) -> FleetOutcome:
        begun.append(arguments)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    monkeypatch.setattr(simulate_module, "run_fleet_divided", interrupted)
    policies = ("--policy", "mux", "--policy", "chunked_prefill", "--policy", "temporal")
    code, _, err = run("simulate", EXAMPLE, "--duration", 1, *policies, "--json", tmp_path / "run.json")

    assert (code, err) == (130, "")
    assert list(json.loads((tmp_path / "run.json").read_text())["deployments"]) == ["mux"]


def test_simulate__single_run_interrupted__shows_and_keeps_what_had_ended(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: FleetRun, events: Sequence[TokenEvent]) -> None:
        on_tokens(self, events)
        if sum(s.finished for s in self.statistics.values()) == 5:
            raise KeyboardInterrupt

    on_tokens = FleetRun._on_tokens
    monkeypatch.setattr(FleetRun, "_on_tokens", interrupted)
    code, out, err = run("simulate", EXAMPLE, "--duration", 3, "--json", tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())["deployments"]["mux"]

    assert (code, err) == (130, "")
    assert re.search(r"interrupted: 5 of \d+ requests had ended; these are their figures alone", out)
    assert found["interrupted"]
    assert (found["total"]["requests"], found["total"]["finished"], found["total"]["lost"]) == (5, 5, 0)
    assert found["total"]["ttft_s"]["p50"] > 0


def test_simulate__interrupted_before_any_request_ended__leaves_no_figures(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: FleetRun, events: Sequence[TokenEvent]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FleetRun, "_on_tokens", interrupted)
    code, _, err = run("simulate", EXAMPLE, "--duration", 3, "--json", tmp_path / "run.json")

    assert (code, err) == (130, "")
    assert not (tmp_path / "run.json").exists()


def test_simulate__table_and_json__say_the_same(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("simulate", EXAMPLE, "--duration", 3, "--json", tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())["deployments"]["mux"]
    header = next(line for line in out.splitlines() if line.startswith("model"))
    rows = {line.split()[0]: line for line in out.splitlines() if line.split() and "ms" in line.split()}

    assert header.split("  ")[-1].strip() == "output tokens/s"
    assert set(rows) == {*found["models"], "total"}
    for name, figures in (*found["models"].items(), ("total", found["total"])):
        requests, ended = rows[name].split()[1:3]
        assert (int(requests), int(ended)) == (figures["requests"], figures["finished"])
        assert figures["requests"] == sum(figures[end] for end in ("finished", "rejected", "failed", "lost"))
        assert float(rows[name].split()[-1]) == pytest.approx(figures["output_tokens_per_s"], rel=0.01)
        assert f"{figures['ttft_s']['p99'] * 1000:.0f} ms" in rows[name]
    assert found["total"]["requests"] == sum(figures["requests"] for figures in found["models"].values())


def test_simulate__split_of_more_gpus_than_the_fleet_has__is_said_beside_it(run: Run) -> None:
    """Of 1P1D, units of one GPU become pairs; on a node of one GPU that is one more."""
    _, out, _ = run("simulate", EXAMPLE.parent / "scaling.yaml", "--duration", 1, "--baseline", "1P1D")
    _, same, _ = run("simulate", EXAMPLE, "--duration", 1, "--baseline", "1P1D")

    assert "1P1D has 4 GPUs, mux 2: they do not compare as they stand" in out
    assert "do not compare" not in same


def test_simulate__more_models_that_may_sleep_than_fit__says_who_is_not_there(run: Run, tmp_path: Path) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    model = {**fleet["models"][1], "source": str(EXAMPLE.parent / "models" / "llama-3.1-8b")}
    demand, replicas = {"rate_per_s": 0.5, "prompt_tokens": 100, "output_tokens": 5}, {"min": 0, "max": 1}
    fleet["models"] = [{**model, "id": f"m{i}", "demand": demand, "replicas": replicas} for i in range(14)]
    fleet["pools"] = [{**fleet["pools"][1], "gpus_per_node": 1}]
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    _, out, _ = run("simulate", tmp_path / "fleet.yaml", "--duration", 10, "--json", tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())["deployments"]["mux"]

    absent = {model for model, figures in found["models"].items() if figures["requests"] and not figures["finished"]}
    assert absent
    assert absent <= set(found["unplaced"])
    assert out.count("not placed: m") == 8
    assert f"not placed: {len(found['unplaced']) - 8} more models (--json names all)" in out
    assert "only with --control-loop is it loaded when asked for" in out


def test_simulate__adapters_that_do_not_fit_beside_their_base__is_told_as_plan_tells_it(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tuned").mkdir()
    config = {"peft_type": "LORA", "r": 256, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]}
    (tmp_path / "tuned" / "adapter_config.json").write_text(json.dumps(config))
    base = {"id": "base", "source": str(EXAMPLE.parent / "models" / "llama-3.1-8b")}
    adapters = [{"id": f"tuned{n}", "base": "base", "adapter": "./tuned"} for n in range(32)]
    pool = {"device": "simulated", "gpu_type": "H100", "device_memory": "24GiB"}
    file = tmp_path / "fleet.yaml"

    file.write_text(json.dumps({"models": [base], "pools": [pool]}))
    assert run("plan", file)[0] == 0
    file.write_text(json.dumps({"models": [base, *adapters], "pools": [pool]}))
    told = [run(*command)[1] for command in (("plan", file), ("simulate", file, "--duration", 5))]

    why = "not placed: base: "
    (planned,), (simulated,) = ([line for line in out.splitlines() if line.startswith(why)] for out in told)
    assert planned == simulated
