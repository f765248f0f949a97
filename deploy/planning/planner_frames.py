"""Defines what crosses between a control loop and the process that plans for it: frames of msgpack."""

from collections.abc import Mapping

import msgspec

from deploy.control.planner import PlanAnswer, PlanTask


class PlannerCall(msgspec.Struct, frozen=True):
    """`budget_s`: of a search, which then ends with the best plan so far. `profiles`: files, by pool."""

    number: int
    solver: str
    budget_s: float
    task: PlanTask
    profiles: Mapping[str, str] = {}


class PlannerReply(msgspec.Struct, frozen=True):
    number: int
    answer: PlanAnswer
