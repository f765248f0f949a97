"""Works out plans for the control loop, which asks and goes on: the answer is there at a later tick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from deploy.control.plan_choice import Needs, Solution, solve
from deploy.control.plan_worth import Appraisal, PlanLook, appraise
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan
from placement.pool_sizing import size_pools
from placement.problem import Solver


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """A snapshot to plan for. The solver starts from `current`, None for nothing; its plan is compared with `goal`."""

    needs: Needs
    current: Plan | None
    goal: Plan

    def resembles(self, other: "PlanTask") -> bool:
        """Says whether what was found for one answers the other."""
        return (self.current, self.goal) == (other.current, other.goal) and self.needs.resembles(other.needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """`now` is what the task's goal does for the demand, `then` what the solution would. `pool_blocks` are the
    sizes of KV pools that had none, by unit.
    """

    solution: Solution
    now: Appraisal
    then: Appraisal
    pool_blocks: Mapping[str, int] = field(default_factory=dict)

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
    solution = solve(solver, needs, task.current)
    return PlanAnswer(
        solution=solution,
        now=appraise(needs, task.goal, estimator),
        then=appraise(needs, solution.plan, estimator),
        pool_blocks={
            u.unit_id: u.total_blocks for u, given in zip(units, task.needs.units, strict=True) if given.sizes_pool
        },
    )


class PlannerInPlace:
    """Answers at once: in virtual time planning takes none."""

    def __init__(self, solver: Solver, estimator: Estimator) -> None:
        self._solver, self._estimator = solver, estimator
        self._answer: PlanAnswer | None = None

    def ask(self, task: PlanTask) -> None:
        self._answer = work_out(task, self._solver, self._estimator)

    def answer(self) -> PlanAnswer | None:
        answer, self._answer = self._answer, None
        return answer
