"""Experiment files: each loads, a small one runs and judges orderings, and a bad one is answered with one line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_experiment import SMALL
from typer.testing import CliRunner

from deploy.cli import build_app
from deploy.errors import FleetFileError, OptionNotUsable
from deploy.simulation.deployments import Deployment, deploy_fleet, tuned_chunk_budget
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.papers.experiment_file import CaseSection, LengthSection, WorkloadSection, read_experiment_file
from deploy.simulation.papers.measurement import CaseResult, RunningCase, _stream, orderings_of_cases, sustains
from deploy.simulation.papers.workloads import BLOCK_TOKENS, draw, workload_stream
from deploy.simulation.runs import RunOptions, run_fleet, sweep_rates
from deploy.simulation.workers import Workers
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec
from router.limits import GatewayLimits

EXAMPLES = Path(__file__).parents[2] / "examples"
PAPERS = sorted((EXAMPLES / "papers").glob("*.yaml"))


def run_quickly(case: CaseSection) -> CaseResult:
    return RunningCase(case, quick=True, seed=0, workers=Workers(1, lambda text: None)).result()


def written(tmp_path: Path, experiment: object) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment))
    return path


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_paper_experiment__shipped__loads_with_its_models(path: Path) -> None:
    experiment = read_experiment_file(path)
    for case in experiment.cases:
        assert all((Path(m.source) / "config.json").is_file() for m in case.fleet.models)
        assert {name for p in case.published for name in p.values} <= {s.name for s in case.systems}


def test_run_case__two_systems__figures_ratios_and_ordering(tmp_path: Path) -> None:
    """With a tenth of the SMs for prefill the first token comes later than with all of them, as 'published'."""
    case = read_experiment_file(written(tmp_path, SMALL)).cases[0]
    result = run_quickly(case)
    split, whole = result.rows
    assert split.simulated is not None
    assert whole.simulated is not None
    assert split.simulated > whole.simulated > 0
    assert split.ratio == pytest.approx(split.simulated / 2.0)
    assert [(o.better, o.worse, o.holds, o.is_tie) for o in result.orderings] == [("whole", "split", True, False)]


def test_run_case__two_systems_that_are_the_same__is_a_tie_and_no_order(tmp_path: Path) -> None:
    same = [{"name": name, "policy": "prefill_first"} for name in ("split", "whole")]
    experiment = {**SMALL, "cases": [{**SMALL["cases"][0], "systems": same}]}
    case = read_experiment_file(written(tmp_path, experiment)).cases[0]
    (ordering,) = run_quickly(case).orderings
    assert (ordering.holds, ordering.is_tie) == (False, True)


def test_sweep__rate_that_cannot_be_sustained__is_given_up_and_found_the_same(tmp_path: Path) -> None:
    """Giving up early must not change what is found: the same goodput as with runs to the end."""
    swept = {
        **SMALL["cases"][0],
        "workload": {**SMALL["cases"][0]["workload"], "requests": 100, "quick_requests": 100},
        "systems": [{"name": "whole", "policy": "prefill_first"}],
        "rates_per_s": [20, 160, 640],
        "need": {"tbt_p99_s": 0.05, "ttft_p99_s": 0.2},
        "published": [{"metric": "goodput_per_s", "values": {"whole": 1.0}}],
    }
    case = read_experiment_file(written(tmp_path, {**SMALL, "cases": [swept]})).cases[0]
    (row,) = run_quickly(case).rows
    deployed = deploy_fleet(case.fleet, Deployment(name="whole", policy="prefill_first"))

    def to_the_end(rate_per_s: float) -> FleetOutcome:
        stream = workload_stream(case.workload, {"m": 1.0}, requests=100, rate_per_s=rate_per_s, seed=0)
        return run_fleet(deployed, stream, RunOptions(limits=GatewayLimits(max_queued=1 << 30), gateways=1))

    found = sweep_rates(
        case.rates_per_s, to_the_end, attains=lambda outcome: float(sustains(outcome, case.need)), refinements=2
    )
    assert row.absolute == found.goodput_per_s
    assert 20 < found.goodput_per_s < 640


def test_workload__slow_and_fast_rates__requests_come_for_long_enough() -> None:
    lengths = {"mean": 10.0, "max": 20}
    workload = WorkloadSection.model_validate(
        {"prompt_tokens": lengths, "output_tokens": lengths, "requests": 100, "seconds": 60.0, "quick_requests": 30}
    )
    assert [workload.count(rate, quick=False) for rate in (0.5, 10.0)] == [100, 600]
    assert workload.count(10.0, quick=True) == 30


def test_chunk_budget__longer_prompts__is_smaller() -> None:
    """The last chunk of a long prompt attends to all that came before."""
    spec = ModelSpec.from_config(json.loads((EXAMPLES / "models/llama-3.1-70b/config.json").read_text()))
    latency = RooflineLatency(A100_80G, num_gpus=8)
    budgets = [tuned_chunk_budget(latency, [spec], A100_80G, 0.1, prompt_tokens=n) for n in (0, 16_000, 80_000)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] > budgets[-1]


def test_compare__unknown_system_in_published__names_place_and_known_ones(tmp_path: Path) -> None:
    broken = {**SMALL, "cases": [{**SMALL["cases"][0], "published": [{"metric": "slo_share", "values": {"x": 1.0}}]}]}
    with pytest.raises(FleetFileError) as failure:
        read_experiment_file(written(tmp_path, broken))
    (line,) = failure.value.problems
    assert "cases[0].published[0]" in line
    assert "known: split, whole" in line


def test_compare__json__holds_rows_and_orderings(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(build_app(), ["compare", str(written(tmp_path, SMALL)), "--quick", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 of 1 orderings" in done.output
    assert len(yaml.safe_load(out.read_text())["rows"]) == 2


def test_compare__unknown_case__names_the_known_ones(tmp_path: Path) -> None:
    experiment = str(written(tmp_path, SMALL))
    done = CliRunner().invoke(build_app(), ["compare", experiment, "--case", "two GPUs"])
    assert done.exit_code != 0
    assert isinstance(done.exception, OptionNotUsable)
    assert "'two GPUs'" in str(done.exception)
    assert "'one GPU'" in str(done.exception)


def test_draw__any_lengths__mean_is_met_after_clipping() -> None:
    lengths = LengthSection(min=10, mean=300.0, max=900, sigma=1.2)
    drawn = draw(lengths, 20_000, np.random.default_rng(1))
    assert drawn.min() >= 10
    assert drawn.max() <= 900
    assert drawn.mean() == pytest.approx(300, rel=0.03)


def test_sessions__later_turns__repeat_the_history_of_their_session() -> None:
    workload = WorkloadSection.model_validate(
        {
            "prompt_tokens": {"mean": 100.0, "max": 400},
            "output_tokens": {"mean": 20.0, "max": 80},
            "sessions": {"mean_turns": 4.0, "think_s": 5.0, "first_tokens": {"mean": 300.0, "max": 900}},
        }
    )
    stream = workload_stream(workload, {"m": 1.0}, requests=200, rate_per_s=5.0, seed=3)
    last: dict[str | None, tuple[int, ...]] = {}
    repeated = 0
    for record in stream.records():
        blocks = record.prefix_block_hashes
        assert len(blocks) == -(-record.input_tokens // BLOCK_TOKENS)
        if record.session_id in last:
            repeated += 1
            assert blocks[: len(last[record.session_id])] == last[record.session_id]
        last[record.session_id] = blocks
    assert repeated > 100


def test_mux__three_models_fill_one_unit__ends_as_many_requests_as_adbs() -> None:
    """MuxServe's own ground (Fig. 9), shortened: decode limits the unit, and must not crawl beside every prompt."""
    path = next(p for p in PAPERS if p.stem == "muxserve-fig9")
    case = read_experiment_file(path).cases[0]
    systems = tuple(s for s in case.systems if s.policy in ("adbs", "mux"))
    published = tuple(p.model_copy(update={"values": {"ADBS": 1.0}}) for p in case.published)
    short = case.model_copy(update={"systems": systems, "published": published, "window_s": 40.0})
    adbs, mux = run_quickly(short).rows
    assert adbs.simulated is not None
    assert mux.simulated is not None
    assert mux.simulated > 0.97 * adbs.simulated


def cases_of(*names: str, **changes: object) -> dict[str, object]:
    """The small experiment once for each of the names."""
    (case,) = SMALL["cases"]
    return {**SMALL, "cases": [{**case, "name": name} for name in names], **changes}


def order_of(system: str, *cases: str) -> list[dict[str, object]]:
    return [{"metric": "ttft_mean_s", "system": system, "cases": list(cases)}]


def test_case_orders__figures_of_one_system__neighbours_are_compared_and_ties_told(tmp_path: Path) -> None:
    """At a fiftieth of the rate no prompt waits for another, so first tokens come earlier."""
    experiment = cases_of("busy", "the same", "idle", case_orders=order_of("split", "busy", "the same", "idle"))
    cases = experiment["cases"]
    assert isinstance(cases, list)
    cases[2]["rates_per_s"] = [0.4]
    read = read_experiment_file(written(tmp_path, experiment))
    results = [run_quickly(case) for case in read.cases]
    orderings = orderings_of_cases(read, results)
    assert [(o.case, o.better, o.worse, o.holds, o.is_tie) for o in orderings] == [
        ("split", "busy", "the same", False, True),
        ("split", "the same", "idle", True, False),
    ]
    chosen = read.model_copy(update={"cases": read.cases[:1]})
    assert orderings_of_cases(chosen, results[:1]) == []


def test_case_orders__case_without_the_system__names_those_that_can_be_compared(tmp_path: Path) -> None:
    experiment = cases_of("busy", "idle", case_orders=order_of("whole", "busy", "lazy"))
    with pytest.raises(FleetFileError) as failure:
        read_experiment_file(written(tmp_path, experiment))
    (line,) = failure.value.problems
    assert "case_orders[0].cases" in line
    assert "lazy" in line
    assert "known: busy, idle" in line


LENGTHS = {"mean": 10.0, "max": 20}
LONGER = {"min": 100, "mean": 150.0, "max": 200}


def test_workload__requests_of_another_kind__come_at_their_share_with_lengths_of_their_own() -> None:
    others = {"share": 0.25, "prompt_tokens": LONGER, "output_tokens": LENGTHS}
    workload = WorkloadSection.model_validate({"prompt_tokens": LENGTHS, "output_tokens": LONGER, "others": others})
    stream = workload_stream(workload, {"m": 1.0}, requests=2000, rate_per_s=1.0, seed=0)
    kinds = [(r.input_tokens >= 100, r.output_tokens <= 20) for r in stream.records()]
    assert set(kinds) == {(True, True), (False, False)}
    assert kinds.count((True, True)) == pytest.approx(500, rel=0.1)


def test_workload__requests_of_another_kind_beside_sessions__are_refused(tmp_path: Path) -> None:
    (case,) = SMALL["cases"]
    others = {"share": 0.5, "prompt_tokens": LENGTHS, "output_tokens": LENGTHS}
    workload = {**case["workload"], "others": others, "sessions": {"first_tokens": LENGTHS}}
    with pytest.raises(FleetFileError) as failure:
        read_experiment_file(written(tmp_path, {**SMALL, "cases": [{**case, "workload": workload}]}))
    (line,) = failure.value.problems
    assert "cases[0].workload.others" in line
    assert "leave out `others` or `sessions`" in line


@pytest.mark.parametrize(
    ("popularity", "said"),
    [({"m": 1, "n": 1}, '= "n": the fleet has no such model; it has m'), ({"m": 0}, "no model is asked for; give one")],
)
def test_workload__popularity_that_no_requests_can_have__is_refused(
    tmp_path: Path, popularity: dict[str, float], said: str
) -> None:
    (case,) = SMALL["cases"]
    asked = {**case, "workload": {**case["workload"], "popularity": popularity}}

    with pytest.raises(FleetFileError) as failure:
        read_experiment_file(written(tmp_path, {**SMALL, "cases": [asked]}))

    (line,) = failure.value.problems
    assert "cases[0].workload.popularity" in line
    assert said in line


@pytest.mark.parametrize("popularity", [None, {"m": 0.1, "sql": 0.9}])
def test_workload__fleet_with_adapters__their_requests_are_their_bases(
    tmp_path: Path, popularity: dict[str, float] | None
) -> None:
    (case,) = SMALL["cases"]
    (tmp_path / "sql").mkdir()
    config = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}
    (tmp_path / "sql" / "adapter_config.json").write_text(json.dumps(config))
    adapter = {"id": "sql", "base": "m", "adapter": "./sql"}
    fleet = {**case["fleet"], "models": [*case["fleet"]["models"], adapter]}
    asked = {**case, "fleet": fleet, "workload": {**case["workload"], "popularity": popularity}}
    read = read_experiment_file(written(tmp_path, {**SMALL, "cases": [asked]})).cases[0]

    stream = _stream(read, 20.0, quick=True, seed=0)
    rows = run_quickly(read).rows

    assert {record.model for record in stream.records()} == {"m"}
    assert all(row.request_attainment is not None and row.request_attainment > 0.9 for row in rows)


def test_figures__first_token_per_prompt_token_and_partition__are_of_requests_and_samples(tmp_path: Path) -> None:
    """Of 900 tokens on average a prompt takes some tens of ms. The split is 9 to 1 as long as the engine runs."""
    (case,) = SMALL["cases"]
    shown = [{"metric": m, "values": {"split": 0.1}} for m in ("ttft_per_token_p99_s", "prefill_sms_share")]
    read = read_experiment_file(written(tmp_path, {**SMALL, "cases": [{**case, "published": shown}]}))
    per_token, share = (row for row in run_quickly(read.cases[0]).rows if row.system == "split")
    assert per_token.simulated is not None
    assert 1e-5 < per_token.simulated < 1e-2
    assert share.simulated == pytest.approx(0.1, abs=0.05)
