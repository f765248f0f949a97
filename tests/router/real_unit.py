"""A gateway and units with real engine processes behind them, in one process and without Ray."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fake_unit import EASY, TOKEN, eventually
from served_gateway import InlineText, running

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.lease import Lease, ModelAssignment
from pdmux_actor.serving.actor import TraceSteps
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.unit import Unit
from placement.unit_role import UnitRole
from router.serving.gateway import Gateway
from router.telemetry.tracing import RequestSpans
from router.view import FleetView, ModelCard, UnitView

MODEL = "real"
_START_TIMEOUT_S = 150.0


@contextlib.asynccontextmanager
async def real_fleet(
    folder: Path,
    settings: EngineSettings,
    *,
    spans: RequestSpans | None = None,
    trace: TraceSteps | None = None,
    roles: Sequence[UnitRole] = (UnitRole.BOTH,),
) -> AsyncIterator[str]:
    """Yields the URL of a gateway that serves the checkpoint as MODEL, on a unit of each of the `roles`. `trace` writes
    the steps of traced requests.
    """
    gateway = Gateway(start_text=InlineText.start)
    async with contextlib.AsyncExitStack() as stack:
        units = [
            await stack.enter_async_context(_real_unit(number, role, folder, settings, trace))
            for number, role in enumerate(roles)
        ]
        for unit in units:
            await eventually(
                lambda unit=unit: [s.phase.value for s in unit.report().models] == ["ready"],
                deadline_s=_START_TIMEOUT_S,
            )
        url = await stack.enter_async_context(running(gateway, spans=spans))
        card = ModelCard(model=MODEL, source=str(folder), revision=None, slo=EASY, created_s=1)
        shown = tuple(UnitView(report=unit.report(), age_s=0.1) for unit in units)
        gateway.update_view(FleetView(models=(card,), units=shown, stream_token=TOKEN))
        yield url


@contextlib.asynccontextmanager
async def _real_unit(
    number: int, role: UnitRole, folder: Path, settings: EngineSettings, trace: TraceSteps | None
) -> AsyncIterator[Unit]:
    """It loads when it is handed over."""
    unit = Unit(NativeEngine(settings), unit_id=f"u{number}", node="n", pool="p", num_gpus=1, role=role)
    await unit.start()
    steps = None if trace is None else trace(unit.steps_of)
    if steps is not None:
        unit.on_ended = steps.ended
    try:
        model = ModelAssignment(model=MODEL, source=str(folder), quota_blocks=100_000, slo=EASY)
        unit.apply_lease(Lease(version=1, models=(model,), policy="mux", stream_token=TOKEN))
        yield unit
    finally:
        if steps is not None:
            await steps.close()
        await unit.stop()
