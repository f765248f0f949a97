"""Several solvers and a judge of one's own, as benchmarks have them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llama_fleets import ESTIMATOR, LLAMA_7B, nodes, power_law

from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from placement.solvers.search import SearchSolver
from placement.solvers.spatial import SpatialSolver

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from planning.judges import CandidateSolver


class FewestUnits:
    """A judge that likes what the estimate does not ask for."""

    def score(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], plan: Plan) -> tuple[float, ...]:
        return (-len(units),)


def test_finalists__scorer_has_its_own_mind__its_choice_wins() -> None:
    models = power_law([LLAMA_7B] * 6, alpha=0.9, max_rate_per_s=4)
    spatial, search = SpatialSolver(estimator=ESTIMATOR), SearchSolver(estimator=ESTIMATOR, rounds=15)

    chosen = CandidateSolver(solvers=[spatial, search], scorer=FewestUnits()).lay_out([nodes()], models)

    assert chosen == search.lay_out([nodes()], models)
    assert len(chosen.units) < len(spatial.lay_out([nodes()], models).units)
