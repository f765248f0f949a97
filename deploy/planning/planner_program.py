"""The process that plans for one control loop, which answers heartbeats meanwhile. Its argument is the number of an
inherited socket.

Tasks come as frames; a newer one ends the search for an older one. It ends with the controller: at end-of-file on the
socket, or by the kernel's parent-death signal.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from deploy.control.fleet_costs import FleetCosts
from deploy.control.planner import work_out
from deploy.planning.planner_frames import PlannerCall, PlannerReply
from deploy.planning.profiled_costs import readable_costs
from pdmux_actor.serving.frames import LENGTH, framed
from pdmux_actor.serving.parent_death import die_with_parent
from placement.estimation.problem_arrays import Estimator
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel, Solver
from placement.scaling.elastic_pool import FleetSize
from placement.scaling.fleet_size import FleetSizeQuestion
from placement.solvers.registry import SOLVERS

_LEAST_KEPT, _MOST_KEPT = 0.15, 0.5  # of the budget, for what follows the search


@dataclass(slots=True)
class SearchTime:
    """Keeps for what follows a search what it took the last time: of a large fleet that is more than the least part."""

    now: Callable[[], float]
    _followed_s: float = field(default=0.0, init=False)
    _until_s: float = field(default=0.0, init=False)
    _was_up: bool = field(default=False, init=False)

    def begin(self, budget_s: float) -> None:
        kept_s = min(max(_LEAST_KEPT * budget_s, self._followed_s), _MOST_KEPT * budget_s)
        self._until_s, self._was_up = self.now() + budget_s - kept_s, False

    def is_up(self) -> bool:
        self._was_up |= self.now() >= self._until_s
        return self._was_up

    def end(self) -> None:
        """Takes note that the answer is there; a search that ended by itself says nothing of what follows one."""
        if self._was_up:
            self._followed_s = self.now() - self._until_s


_SIZES_SHARE = 0.85  # of the budget, for how many nodes there should be
_SLICE_SHARE = 0.15  # of the budget, for the plan of one size: whether it is enough shows early
_NICENESS = 5  # what serves comes first


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the controller decides
    os.nice(_NICENESS)
    connection = socket.socket(fileno=int(arguments[0]))
    decoder = msgspec.msgpack.Decoder(PlannerCall)
    costs, profiles, search_time = FleetCosts(), None, SearchTime(time.monotonic)
    while (body := _newest(connection)) is not None:
        call = decoder.decode(body)
        if call.profiles != profiles:
            costs, profiles = readable_costs(call.profiles), call.profiles
        connection.sendall(framed(_reply(call, connection, costs.estimator, search_time)))


def _reply(call: PlannerCall, connection: socket.socket, estimator: Estimator, search_time: SearchTime) -> PlannerReply:
    """The best so far, when time is up. A call that a newer one has replaced is answered too: a sign of life."""
    search_time.begin(call.budget_s)

    def is_time_up() -> bool:
        return search_time.is_up() or _has_news(connection)

    task = replace(call.task, size=None)
    answer = work_out(task, SOLVERS[call.solver].for_units(estimator, is_time_up), estimator, is_time_up)
    search_time.end()
    if call.task.size is not None:
        answer = replace(answer, size=_size(call, call.task.size, connection, estimator))
    return PlannerReply(number=call.number, answer=answer)


def _size(call: PlannerCall, question: FleetSizeQuestion, connection: socket.socket, estimator: Estimator) -> FleetSize:
    """Has as long as the plan had, each size that is tried no more than a part of it."""
    until_s = time.monotonic() + _SIZES_SHARE * call.budget_s
    solver = SlicedSolver(
        lambda is_time_up: SOLVERS[call.solver].for_units(estimator, is_time_up),
        slice_s=_SLICE_SHARE * call.budget_s,
        is_given_up=lambda: _has_news(connection),
    )
    return question.answer(solver, estimator, lambda: time.monotonic() >= until_s or _has_news(connection))


class SlicedSolver:
    """A solver that ends each search after `slice_s`."""

    def __init__(
        self, make: Callable[[Callable[[], bool]], Solver], *, slice_s: float, is_given_up: Callable[[], bool]
    ) -> None:
        self._slice_s = slice_s
        self._is_given_up = is_given_up
        self._until_s = 0.0
        self._solver = make(self._is_time_up)

    def solve(self, units: Sequence[UnitCapacity], models: Sequence[PlacementModel], current: Plan | None) -> Plan:
        self._until_s = time.monotonic() + self._slice_s
        return self._solver.solve(units, models, current)

    def _is_time_up(self) -> bool:
        return time.monotonic() >= self._until_s or self._is_given_up()


def _newest(connection: socket.socket) -> bytes | None:
    """The last of the calls that wait; None once the controller is gone."""
    body = _read(connection)
    while body is not None and _has_news(connection):
        body = _read(connection)
    return body


def _read(connection: socket.socket) -> bytes | None:
    header = _exactly(connection, LENGTH.size)
    return None if header is None else _exactly(connection, *LENGTH.unpack(header))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts, missing = [], size
    while missing:
        part = connection.recv(missing)  # no deadline: until the controller asks or is gone
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _has_news(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
