"""The JSON Schema of what `GET /fleet/live` tells, by topic."""

from typing import Any

import msgspec

from deploy.inspection.live_fleet import LiveFleet, LiveSample
from deploy.inspection.plan_report import PlanReport
from pdmux_actor.scheduling.decision import LogExcerpt
from router.access.key_figures import KeysReport
from router.telemetry.service_report import RequestReceipts


def live_json_schema() -> dict[str, Any]:
    """Each property is the data of the events of that name."""
    kinds = {
        "fleet": LiveFleet,
        "history": tuple[LiveSample, ...],
        "unit": LogExcerpt,
        "requests": RequestReceipts,
        "plan": PlanReport,
        "keys": KeysReport,
    }
    schemas, parts = msgspec.json.schema_components(kinds.values(), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "muxfleet GET /fleet/live",
        "type": "object",
        "properties": dict(zip(kinds, schemas, strict=True)),
        "$defs": parts,
    }
