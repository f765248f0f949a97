"""Plans come from a process of its own that is watched."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from fleet_model import World, catalog
from test_plan_requests import SlowPlanner

from deploy.control.planner import PlanAnswer, PlanTask, work_out
from deploy.planning import planner_process as module
from deploy.planning.planner_process import PlannerPatience, PlannerProcess, start_planner
from pdmux_actor.serving.own_program import OwnProcess, start_own_program
from placement.estimation.problem_arrays import Estimator
from placement.solvers.registry import SOLVERS

_DEADLINE_S = 60.0


def tasks(*fleets: tuple[str, ...]) -> list[PlanTask]:
    """One for each, as a control loop asks them."""
    asked = SlowPlanner()
    for models in fleets:
        world = World(catalog(*models), expected_units=1, planner=asked)
        world.start_unit()
        world.beat()
    return asked.tasks


def with_rate(task: PlanTask, rate_per_s: float) -> PlanTask:
    models = tuple(replace(m, demand=replace(m.demand, rate_per_s=rate_per_s)) for m in task.needs.models)
    return replace(task, needs=replace(task.needs, models=models))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():  # noqa: ASYNC110  (processes set no event)
            await asyncio.sleep(0.01)


async def answered(planner: PlannerProcess) -> PlanAnswer:
    got: list[PlanAnswer] = []

    def has_answered() -> bool:
        answer = planner.answer()
        if answer is not None:
            got.append(answer)
        return bool(got)

    await until(has_answered)
    return got[0]


@pytest.fixture
async def planner() -> AsyncIterator[PlannerProcess]:
    made = PlannerProcess(PlannerPatience(backoff_s=0.01))
    yield made
    await made.close()


async def test_planner_process__task__answers_what_the_solver_answers_here(planner: PlannerProcess) -> None:
    (task,) = tasks(("a", "b"))

    planner.using("search").ask(task)

    assert await answered(planner) == work_out(task, SOLVERS["search"].make(Estimator(), lambda: False), Estimator())
    assert planner.answer() is None


async def test_planner_process__newer_task__only_that_is_answered(planner: PlannerProcess) -> None:
    older, newer = tasks(("a",), ("a", "b"))
    planner.ask(older)
    planner.ask(newer)

    answer = await answered(planner)

    assert {p.model for u in answer.solution.plan.units for p in u.models} == {"a", "b"}


async def test_planner_process__demand_as_it_was__is_answered_without_the_process(planner: PlannerProcess) -> None:
    (task,) = tasks(("a", "b"))
    planner.ask(task)
    first = await answered(planner)
    assert planner.pid is not None
    os.kill(planner.pid, signal.SIGSTOP)

    planner.ask(with_rate(task, 1.01))
    again = planner.answer()
    planner.ask(with_rate(task, 2.0))

    assert again == first
    assert planner.answer() is None


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_planner_process__dies_or_hangs__is_replaced_and_asked_again(
    blow: signal.Signals, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.05)
    planner = PlannerProcess(PlannerPatience(budget_s=0.1, grace_s=8.0, backoff_s=0.01)).using("search")
    (task,) = tasks(("a",))
    await until(lambda: planner.pid)
    first = planner.pid
    assert first is not None
    os.kill(first, blow)

    planner.ask(task)
    answer = await answered(planner)

    assert answer.solution.plan.units_of("a")
    assert planner.pid != first
    assert "planner process is replaced" in caplog.text
    with pytest.raises(ProcessLookupError):
        await until(lambda: os.kill(first, 0))
    await planner.close()


async def test_planner_process__program_that_never_works__is_tried_ever_more_seldom_and_the_loop_stays_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def start_nothing() -> OwnProcess:
        return await start_own_program("deploy.no_such_program")

    planner = PlannerProcess(PlannerPatience(backoff_s=0.01), start_nothing).using("search")
    await until(lambda: caplog.text.count("planner process is replaced") >= 3)

    assert planner.answer() is None
    waits = [r.in_s for r in caplog.records if r.message == "planner process is replaced"]  # type: ignore[attr-defined]  # a log record's extra
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    await planner.close()


async def test_planner_process__has_not_started_for_hours__is_there_when_it_can() -> None:
    """As on a machine that is out of memory for a night."""
    tries = 0

    async def start_at_last() -> OwnProcess:
        nonlocal tries
        tries += 1
        if tries <= 1100:
            raise OSError("no memory")
        return await start_planner()

    planner = PlannerProcess(PlannerPatience(backoff_s=0.0), start_at_last).using("search")
    (task,) = tasks(("a",))
    planner.ask(task)

    assert (await answered(planner)).solution.plan.units_of("a")
    await planner.close()


async def test_planner_process__its_parent_ends__it_ends_too() -> None:
    program = (
        "import asyncio\n"
        "from deploy.planning.planner_process import start_planner\n"
        "async def main():\n"
        "    connection = await start_planner()\n"
        "    print(connection.process.pid, flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), _DEADLINE_S))
    parent.kill()
    await parent.wait()

    with pytest.raises(ProcessLookupError):
        await until(lambda: _is_gone(child))


def _is_gone(pid: int) -> bool:
    os.kill(pid, 0)
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        if stat.read().split()[2] == "Z":  # its new parent has not looked yet
            raise ProcessLookupError
    return False


async def test_planner__closed_while_it_starts__ends() -> None:
    planner = PlannerProcess()
    planner.using("search")
    await asyncio.sleep(0)  # the start has begun

    await asyncio.wait_for(planner.close(), 10)

    assert planner.pid is None
