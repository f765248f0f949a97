"""Decides which waiting requests can still get their first token in time, and in which order to serve them.

Earliest deadline first is best while every deadline can be met, and worst past capacity: it then serves the request
that is least likely to make it, so that all of them are late. The number of requests in time is maximal by
Moore-Hodgson's rule (J. M. Moore, 1968; 1 || sum U_j): go through the requests by due time and add up their work;
whenever one would be late, drop the one of those so far that takes most work. Those that are kept are served by due
time, all in time; those that are dropped go behind them, by age. With weights the one with most work per weight is
dropped (the problem is NP-hard then; the rule is the usual approximation).

The scheduler of a unit and the gateway's admission both ask this function, so that they agree.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A request that waits for `work_s` of the server's time, and is in time if it has had it by `due_s`."""

    due_s: float
    work_s: float
    weight: float = 1.0


class ServingOrder(msgspec.Struct, frozen=True, gc=False):
    """Indices of the candidates: `in_time` by due time, and `late`, which cannot all be served in time, as given."""

    in_time: list[int]
    late: list[int]


def serving_order(candidates: Sequence[Candidate], *, free_s: float) -> ServingOrder:
    """`free_s` is when the server is free for the first of them. Of equals the one given first is kept.

    >>> flood = [Candidate(due_s=1.0, work_s=0.6), Candidate(due_s=1.1, work_s=0.3), Candidate(due_s=1.2, work_s=0.4)]
    >>> serving_order(flood, free_s=0.0)
    ServingOrder(in_time=[1, 2], late=[0])
    >>> serving_order([Candidate(due_s=1.0, work_s=0.2)], free_s=0.9)
    ServingOrder(in_time=[], late=[0])
    """
    by_due = sorted(range(len(candidates)), key=lambda index: candidates[index].due_s)
    end_s = free_s
    kept: list[tuple[float, int]] = []  # a heap: the most work per weight first, of equals the last
    dropped: set[int] = set()
    for index in by_due:
        candidate = candidates[index]
        end_s += candidate.work_s
        heappush(kept, (-candidate.work_s / candidate.weight, -index))
        while kept and end_s > candidate.due_s:
            _, place = heappop(kept)
            dropped.add(-place)
            end_s -= candidates[-place].work_s
    return ServingOrder([i for i in by_due if i not in dropped], sorted(dropped))
