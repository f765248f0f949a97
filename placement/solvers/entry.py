"""Defines what a solver says of itself."""

from collections.abc import Callable
from dataclasses import dataclass

from placement.estimation.problem_arrays import Estimator
from placement.problem import FleetSolver, Solver
from placement.solvers.role_solver import RoleSolver

IsTimeUp = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverEntry:
    """`name` is what the fleet file and `--solver` use; `rule` is its line of docs/planner.md. `make` makes one that
    plans for given units, `make_for_nodes` one that also chooses the sizes of units (None: it cannot). `online`: a
    control loop may use it; else it is for `--solver` only.
    """

    name: str
    rule: str
    make: Callable[[Estimator, IsTimeUp], Solver]
    make_for_nodes: Callable[[Estimator, IsTimeUp], FleetSolver] | None = None
    online: bool = True

    def for_units(self, estimator: Estimator, is_time_up: IsTimeUp) -> Solver:
        """Returns a solver that plans for units of every role."""
        return RoleSolver(self.make(estimator, is_time_up))
