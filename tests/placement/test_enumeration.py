"""Solvers that enumerate: plans, and ways to cut nodes into meshes."""

from collections import Counter
from dataclasses import replace

import pytest
from llama_fleets import ESTIMATOR, llm, nodes
from placement_cases import make_model, make_unit

from placement.errors import FleetTooLarge
from placement.solvers.exhaustive import ExhaustiveSolver
from placement.solvers.muxserve import MuxServeSolver, mesh_groups
from placement.solvers.muxserve_as_printed import PrintedMuxServeSolver


def test_exhaustive__nodes_that_can_be_cut_in_many_ways__counts_the_plans_of_all_of_them() -> None:
    """35 ways to cut two nodes, each with at least one plan."""
    with pytest.raises(FleetTooLarge, match="use solver 'search'"):
        ExhaustiveSolver(estimator=ESTIMATOR, most_plans=30).lay_out([nodes(2)], [llm("m", max_replicas=1)])


def test_exhaustive__time_is_up__says_what_to_use_instead() -> None:
    with pytest.raises(FleetTooLarge, match="use solver 'search'"):
        ExhaustiveSolver(is_time_up=lambda: True).solve([make_unit("u")], [make_model("m")], None)


def test_exhaustive__many_units_that_differ__ends_soon() -> None:
    """2^40 sets of homes, of which 40 are one replica's."""
    units = [make_unit(f"u{i:02}", memory_mib=256 + i) for i in range(40)]

    plan = ExhaustiveSolver().solve(units, [make_model("m", max_replicas=1)], None)

    assert len(plan.units_of("m")) == 1


@pytest.mark.parametrize("solver", [MuxServeSolver, PrintedMuxServeSolver])
def test_muxserve__a_thousand_gpus_and_no_time__lays_out_the_first_way_to_cut_them(
    solver: type[MuxServeSolver | PrintedMuxServeSolver],
) -> None:
    """Of two and a half millions, which took minutes from 40 nodes on, and memory without bound."""
    layout = solver(estimator=ESTIMATOR, is_time_up=lambda: True).lay_out([nodes(125)], [llm("m")])

    assert layout.plan.unplaced == {}


def test_mesh_groups__any_nodes__use_every_gpu_that_they_can() -> None:
    pools = [replace(nodes(2), gpus_per_node=6), nodes(1)]

    for meshes in mesh_groups(pools):
        of_nodes = Counter[tuple[int, int]]()
        for pool, node, size in meshes:
            of_nodes[pool, node] += size
        assert of_nodes == {(0, 0): 6, (0, 1): 6, (1, 0): 8}
