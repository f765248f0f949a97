"""Experiment files: each loads, a small one runs and judges orderings, and a bad one is answered with one line."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from deploy.cli import build_app
from deploy.errors import FleetFileError, OptionNotUsable
from deploy.simulation.papers.experiment_file import LengthSection, WorkloadSection, read_experiment_file
from deploy.simulation.papers.measurement import run_case
from deploy.simulation.papers.workloads import BLOCK_TOKENS, draw, workload_stream

EXAMPLES = Path(__file__).parents[2] / "examples"
PAPERS = sorted((EXAMPLES / "papers").glob("*.yaml"))
SMALL = {
    "name": "small",
    "paper": "none",
    "cases": [
        {
            "name": "one GPU",
            "fleet": {
                "models": [
                    {
                        "id": "m",
                        "source": str(EXAMPLES / "models" / "qwen2.5-1.5b"),
                        "slo": {"ttft_s": 2.0, "tbt_s": 0.05},
                    }
                ],
                "pools": [{"device": "simulated", "gpu_type": "H100", "kv_memory": "8GiB"}],
            },
            "workload": {
                "prompt_tokens": {"mean": 900, "max": 4000},
                "output_tokens": {"mean": 20, "max": 100},
                "requests": 30,
                "quick_requests": 30,
            },
            "systems": [
                {"name": "split", "policy": "static_split", "scheduler": {"static_decode_share": 0.9}},
                {"name": "whole", "policy": "prefill_first"},
            ],
            "rates_per_s": [20],
            "published": [{"metric": "ttft_mean_s", "values": {"split": 2.0, "whole": 1.0}}],
        }
    ],
}


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
    result = run_case(case, quick=True, seed=0, on_run=lambda text: None)
    split, whole = result.rows
    assert split.simulated is not None
    assert whole.simulated is not None
    assert split.simulated > whole.simulated > 0
    assert split.ratio == pytest.approx(split.simulated / 2.0)
    assert [(o.better, o.worse, o.holds) for o in result.orderings] == [("whole", "split", True)]


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
