"""What a model needs beside the KV pool, for the largest launches of its unit's engine."""

from dataclasses import replace

import pytest
from llama_fleets import ESTIMATOR
from model_shapes import LLAMA_3_8B
from placement_cases import MIB, make_model, make_unit

from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.estimation.memory import (
    bytes_for_models,
    gathered_bytes,
    kept_prefill_bytes,
    resident_bytes,
    resident_bytes_on,
    workspace_bytes,
)
from placement.launch_limits import LaunchLimits
from placement.problem import Solver
from placement.solvers.memory_greedy import MemoryGreedySolver
from placement.solvers.search import SearchSolver

LARGE_LAUNCHES = LaunchLimits(batch_tokens=8192, sequences=256)


def test_workspace__larger_launches__take_what_the_formula_says() -> None:
    assert workspace_bytes(LLAMA_3_8B) // MIB == 231
    assert workspace_bytes(LLAMA_3_8B, limits=LARGE_LAUNCHES) // MIB == 925


@pytest.mark.parametrize("num_gpus", [1, 2, 8])
@pytest.mark.parametrize("context_tokens", [None, 8192])
def test_gathered_prefixes__of_a_thin_model__have_room_beside_attention(
    num_gpus: int, context_tokens: int | None
) -> None:
    """Its MLP needs less than its attention: nothing is left over for them."""
    thin = replace(LLAMA_3_8B, intermediate_size=4096)
    limits = LaunchLimits(batch_tokens=1024, sequences=1)
    each = thin.num_heads * thin.head_dim // num_gpus
    keys_and_values = 2 * thin.num_kv_heads * thin.head_dim // num_gpus
    attention = limits.batch_tokens * (4 * each + keys_and_values + 2 * thin.hidden_size)

    gathered = gathered_bytes(thin, num_gpus, limits, context_tokens)

    assert gathered >= 2 * (context_tokens or thin.max_position_embeddings) * thin.head_dim * 2
    assert num_gpus * (2 * attention + gathered) <= workspace_bytes(thin, num_gpus, limits, context_tokens)


def test_kept_prefills__models_in_arenas_and_others__one_workspace_or_one_for_each_partition() -> None:
    """Lanes have an arena each; what computes elsewhere is kept by every partition's stream."""
    own_bytes = workspace_bytes(LLAMA_3_8B, limits=LARGE_LAUNCHES)
    dense = make_model("dense", spec=LLAMA_3_8B)
    quantised = make_model("quantised", spec=replace(LLAMA_3_8B, weights="int8"))
    foreign = make_model("foreign", spec=replace(LLAMA_3_8B, architecture="GPT2LMHeadModel"))

    assert kept_prefill_bytes([dense, dense], LARGE_LAUNCHES) == own_bytes
    assert kept_prefill_bytes([dense, quantised], LARGE_LAUNCHES) == 6 * own_bytes
    assert kept_prefill_bytes([foreign], LARGE_LAUNCHES) == 6 * own_bytes
    assert kept_prefill_bytes([]) == 0


def test_launch_limits__nobody_says_otherwise__are_the_schedulers() -> None:
    assert SchedulerSettings().launch_limits() == LaunchLimits()


@pytest.mark.parametrize("solver", [MemoryGreedySolver(), SearchSolver(estimator=ESTIMATOR)], ids=["greedy", "search"])
def test_solve__workspace_of_large_launches_has_no_room__says_so(solver: Solver) -> None:
    model = make_model("m")
    small = make_unit("u")
    small = replace(small, memory_bytes=small.memory_bytes - bytes_for_models(small) + resident_bytes(model.spec))
    large = replace(small, launch_limits=LARGE_LAUNCHES)

    assert solver.solve([small], [model], None).units_of("m") == ("u",)
    plan = solver.solve([large], [model], None)
    assert plan.units_of("m") == ()
    assert f"needs {-(-resident_bytes_on(large, model) // MIB)} MiB for weights and workspace" in plan.unplaced["m"]
