"""Works out plans for the control loop, which asks and goes on: the answer is there at a later tick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from deploy.control.plan_choice import Needs, are_like
from deploy.control.plan_solution import Solution, solve
from deploy.control.plan_worth import Appraisal, Appraiser, PlanLook
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan
from placement.pool_sizing import size_pools
from placement.problem import Solver
from placement.scaling.elastic_pool import FleetSize
from placement.scaling.fleet_size import FleetSizeQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """A snapshot to plan for. The solver starts from `current`, None for nothing; its plan is compared with `goal`.
    `size` asks how many nodes there should be, too.
    """

    needs: Needs
    current: Plan | None
    goal: Plan
    size: FleetSizeQuestion | None = None

    def resembles(self, other: "PlanTask") -> bool:
        """Says whether what was found for one answers the other."""
        is_same_plan = (self.current, self.goal) == (other.current, other.goal) and self.needs.resembles(other.needs)
        return is_same_plan and sizes_resemble(self.size, other.size)


def sizes_resemble(one: FleetSizeQuestion | None, other: FleetSizeQuestion | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.pools, one.limits) == (other.pools, other.limits) and are_like(one.models, other.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """`now` is what the task's goal does for the demand, `then` what the solution would. `pool_blocks` are the
    sizes of KV pools that had none, by unit. `size` answers the task's.
    """

    solution: Solution
    now: Appraisal
    then: Appraisal
    pool_blocks: Mapping[str, int] = field(default_factory=dict)
    size: FleetSize | None = None

    def as_look(self, why: str) -> PlanLook:
        solution = self.solution
        return PlanLook(why=why, plan=solution.plan, now=self.now, then=self.then, put_to_sleep=solution.put_to_sleep)


class Planner(Protocol):
    def ask(self, task: PlanTask) -> None:
        """Takes the place of a task that has not been answered, which never is."""
        ...

    def answer(self) -> PlanAnswer | None:
        """Hands over the answer to the last task, once; None while there is none."""
        ...


def work_out(
    task: PlanTask, solver: Solver, estimator: Estimator, is_time_up: Callable[[], bool] = lambda: False
) -> PlanAnswer:
    units = size_pools(task.needs.units, task.needs.models, estimator, is_time_up)
    needs = replace(task.needs, units=units)
    appraiser = Appraiser(needs, estimator)
    now = appraiser.appraise(task.goal)  # before the search, which ends when time is up: little is to come after it
    solution = solve(solver, needs, task.current)
    return PlanAnswer(
        solution=solution,
        now=now,
        then=appraiser.appraise(solution.plan),
        pool_blocks={
            u.unit_id: u.total_blocks for u, given in zip(units, task.needs.units, strict=True) if given.sizes_pool
        },
        size=None if task.size is None else task.size.answer(solver, estimator, is_time_up),
    )


class PlannerInPlace:
    """Answers at once: in virtual time planning takes none. A size that was found for like demand is not looked for
    again.
    """

    def __init__(self, solver: Solver, estimator: Estimator) -> None:
        self._solver, self._estimator = solver, estimator
        self._answer: PlanAnswer | None = None
        self._sized: tuple[FleetSizeQuestion, FleetSize] | None = None

    def ask(self, task: PlanTask) -> None:
        size = task.size
        if size is not None and (self._sized is None or not sizes_resemble(self._sized[0], size)):
            self._sized = size, size.answer(self._solver, self._estimator, lambda: False)
        answer = work_out(replace(task, size=None), self._solver, self._estimator)
        self._answer = answer if size is None or self._sized is None else replace(answer, size=self._sized[1])

    def answer(self) -> PlanAnswer | None:
        answer, self._answer = self._answer, None
        return answer
