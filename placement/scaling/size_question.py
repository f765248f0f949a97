"""Asks for the size of a fleet as it runs, and answers."""

from collections.abc import Callable
from dataclasses import dataclass

from placement.estimation.problem_arrays import Estimator
from placement.problem import PlacementModel, Solver
from placement.scaling.elastic_pool import ElasticPool, FleetSize, SizeLimits
from placement.scaling.fleet_size import FleetSizing


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSizeQuestion:
    """`models` with the demand that is expected by the time at which nodes asked for now would serve."""

    pools: tuple[ElasticPool, ...]
    models: tuple[PlacementModel, ...]
    limits: SizeLimits

    def answer(self, solver: Solver, estimator: Estimator, is_time_up: Callable[[], bool]) -> FleetSize:
        sizing = FleetSizing(
            pools=self.pools,
            models=self.models,
            limits=self.limits,
            solver=solver,
            estimator=estimator,
            is_time_up=is_time_up,
        )
        return sizing.find()
