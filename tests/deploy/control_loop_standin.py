"""Stands where a control loop would, for units that tell it heartbeats."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fleet_model import FakeUnit
from ray import serve
from ray.exceptions import RayTaskError

from deploy.serve.lease_server import LeaseServer
from pdmux_actor.lease import Lease, ModelAssignment, UnitReport
from pdmux_actor.messages import Slo
from pdmux_actor.serving.control_link import (
    ControlAddress,
    ControlLink,
)

TOKEN = "secret"
MODEL = ModelAssignment(model="m", source="/m", quota_blocks=7, slo=Slo(ttft_s=1.0, tbt_s=0.05))
NOBODY = ControlAddress(endpoint="127.0.0.1:1", token=TOKEN)


def lease_of(version: int) -> Lease:
    return Lease(version=version, models=(MODEL,), policy="mux", stream_token=TOKEN)


class Answers:
    """What a control loop says to heartbeats."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.heard: list[str] = []

    def __call__(self, report: UnitReport) -> Lease:
        if report.unit_id == "poison":
            raise RuntimeError("a bug")
        self.heard.append(report.unit_id)
        return lease_of(self.version)


class TakenLeadership:
    """Implements Leadership."""

    def __init__(self) -> None:
        self.is_over = False

    def take(self) -> None:
        self.is_over = False

    def is_taken_over(self) -> bool:
        return self.is_over


class Called:
    def __init__(self, method: Callable[..., Awaitable[Any]]) -> None:
        self.remote = method


class ServeHandle:
    """Serve's, of a control loop that listens at `address`; None: of an earlier release. One that is `taken_over` heard
    of the next before Serve did.
    """

    def __init__(self, answers: Answers, address: ControlAddress | None) -> None:
        self.answers, self.address, self.asked, self.taken_over = answers, address, 0, False
        self.lease_stream, self.heartbeat = Called(self._lease_stream), Called(self._heartbeat)

    async def _lease_stream(self) -> ControlAddress:
        self.asked += 1
        if self.taken_over:
            error: RayTaskError = RayTaskError("lease_stream", "", await refused_by_taken_over())
            raise error.as_instanceof_cause()
        if self.address is None:
            raise RayTaskError("lease_stream", "", AttributeError())
        return self.address

    async def _heartbeat(self, report: UnitReport) -> Lease:
        return self.answers(report)


async def refused_by_taken_over() -> Exception:
    server = LeaseServer(TOKEN, Answers(), lambda: "127.0.0.1")
    server.close()
    try:
        await server.address()
    except OSError as error:
        return error
    raise AssertionError("a closed server gave its address")


async def listening(answers: Answers, token: str = TOKEN) -> ControlAddress:
    return replace(await LeaseServer(TOKEN, answers, lambda: "127.0.0.1").address(), token=token)


async def linked(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, address: ControlAddress | None
) -> tuple[ControlLink, ServeHandle]:
    handle = ServeHandle(answers, address)
    monkeypatch.setattr(serve, "get_deployment_handle", lambda deployment, application: handle)
    return ControlLink("Controller", "control"), handle


def a_report(unit_id: str = "u", lease_version: int = 0) -> UnitReport:
    return replace(FakeUnit(unit_id=unit_id).report(), lease_version=lease_version)
