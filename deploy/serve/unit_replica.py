"""Runs a unit as a replica: imports what that needs, nothing of planning or of fleet files."""

from importlib.metadata import version
from typing import Any

from ray import serve

from deploy.environment import asks_for_compiled_modules, otlp_endpoint
from deploy.log_lines import log_from_replica
from deploy.serve.unit_ids import unit_id_of
from pdmux_actor.serving.actor import PdmuxActor, TraceSteps
from pdmux_actor.serving.otlp import span_processor

_COMPILED_PROGRAM = "deploy.compilation.compiled_program"


class UnitReplica(PdmuxActor):
    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc]  # as its base
        unit_id = unit_id_of(settings["pool"], serve.get_replica_context().replica_id.unique_id)
        log_from_replica(unit=unit_id)
        run_by = _COMPILED_PROGRAM if asks_for_compiled_modules() else None
        await super().__init__(settings, unit_id, traced_steps(unit_id), run_by)


def traced_steps(unit_id: str) -> TraceSteps | None:
    """None: nothing is exported, and OpenTelemetry is not imported."""
    endpoint = otlp_endpoint()
    processor = None if endpoint is None else span_processor(endpoint)
    if processor is None:
        return None
    from pdmux_actor.serving.step_spans import StepSpans

    return lambda read: StepSpans(processor, unit_id=unit_id, version=version("muxfleet"), read=read)
