"""Defines what crosses between a control loop and the process that plans for it: frames of msgpack."""

import struct

import msgspec

from deploy.control.planner import PlanAnswer, PlanTask
from placement.estimation.problem_arrays import Estimator

LENGTH = struct.Struct(">I")


class PlannerCall(msgspec.Struct, frozen=True):
    """`budget_s`: of a search, which then ends with the best plan so far."""

    number: int
    solver: str
    budget_s: float
    task: PlanTask

    def estimator(self) -> Estimator:
        return Estimator()


class PlannerReply(msgspec.Struct, frozen=True):
    number: int
    answer: PlanAnswer


def frame(message: PlannerCall | PlannerReply) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
