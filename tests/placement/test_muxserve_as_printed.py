"""MuxServe's Eq. 3 and Algorithms 1 and 2 as printed, on sums by hand. Prompts have 240 tokens, answers 80."""

import numpy as np
import pytest
from counted_latency import COUNTED
from hypothesis import given, settings
from llama_fleets import ESTIMATOR, LLAMA_7B, LLAMA_13B, LLAMA_30B, LLAMA_65B, llm, nodes, power_law
from placement_cases import assert_sound, make_model, make_unit, model_lists, unit_lists

from placement.estimation.problem_arrays import Instance, make_instance
from placement.plan import UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.muxserve_as_printed import PrintedMuxServeSolver, PrintedThroughput
from profiler.gpus.a100_80g import DEVICE as A100_80G


def unit_of(sequences: int, unit_id: str = "u") -> UnitCapacity:
    """With the blocks of so many sequences of mean length."""
    unit = make_unit(unit_id, memory_mib=1 << 16, total_blocks=1, device=A100_80G)
    (costs,) = make_instance([unit], [make_model()], COUNTED).costs
    blocks = int(costs.blocks_per_sequence[0]) * sequences
    return make_unit(unit_id, memory_mib=1 << 16, total_blocks=blocks, device=A100_80G)


def of(models: list[PlacementModel], *, sequences: int = 8) -> tuple[PrintedThroughput, Instance]:
    instance = make_instance([unit_of(sequences)], models, COUNTED)
    return PrintedThroughput(instance, COUNTED), instance


def test_equation_3__two_models_beyond_their_load__share_blocks_by_rate_and_wait_for_both_prefills() -> None:
    """Batches of 6 and 2. Prefills: 8 * 20 ms. Decode: 80 steps of 9 + 6 ms, and of 9 + 2 ms."""
    throughput, _ = of([make_model("a", rate_per_s=30), make_model("b", rate_per_s=10)])

    per_s = throughput.of_models(0, np.array([0, 1]))

    assert per_s == pytest.approx([6 / (0.16 + 80 * 0.015), 2 / (0.16 + 80 * 0.011)])
    assert throughput.of_unit(0, [0, 1]) == pytest.approx(sum(per_s))


def test_equation_3__load_below_what_the_batch_would_bear__is_the_load() -> None:
    throughput, _ = of([make_model("a", rate_per_s=0.5), make_model("b", rate_per_s=30)])

    assert throughput.of_models(0, np.array([0]))[0] == 0.5


def test_algorithm_2__load_that_a_fifth_of_the_sms_bears__takes_a_fifth() -> None:
    """8 / (0.16 s + 1.36 s / share) is 1 at a share of 17 %."""
    throughput, _ = of([make_model("easy", rate_per_s=1), make_model("hard", rate_per_s=30)])

    assert throughput.sm_shares.tolist() == [[0.2, 1.0]]


def test_algorithm_1__three_equal_models_on_two_meshes__the_third_joins_the_first() -> None:
    """Beside a model, another adds less to F than alone; of equal meshes the first is taken."""
    models = [make_model(name, rate_per_s=30) for name in "abc"]
    units = [unit_of(8, "u0"), unit_of(8, "u1")]

    plan = PrintedMuxServeSolver(estimator=COUNTED).solve(units, models, None)

    assert [[p.model for p in plan.models_of(u)] for u in ("u0", "u1")] == [["a", "c"], ["b"]]


def test_algorithm_1__nineteen_llamas_on_32_gpus__all_have_one_mesh_and_no_gpu_is_left() -> None:
    specs = [LLAMA_7B] * 12 + [LLAMA_13B] * 4 + [LLAMA_30B] * 2 + [LLAMA_65B]
    models = power_law(specs, alpha=2.1, max_rate_per_s=40)

    layout = PrintedMuxServeSolver(estimator=ESTIMATOR).lay_out([nodes(4)], models)

    assert_sound(layout.plan, list(layout.units), models)
    assert layout.plan.unplaced == {}
    assert sum(u.num_gpus for u in layout.units) == 32


def test_algorithm_1__no_mesh_holds_the_model__says_so() -> None:
    plan = PrintedMuxServeSolver().solve([make_unit(device=A100_80G)], [llm("large", LLAMA_65B)], None)

    assert "; " in plan.unplaced["large"]


@settings(max_examples=25)
@given(units=unit_lists(), models=model_lists())
def test_any_fleet__plan_is_sound(units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    assert_sound(PrintedMuxServeSolver().solve(units, models, None), units, models)
