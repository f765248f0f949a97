"""One JSON line per request to a generation endpoint, on the logger `muxfleet.requests`."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from router.errors import RouterError
from router.telemetry.request_labels import GENERATION_ENDPOINTS
from router.telemetry.service_report import ServiceReport

logger = logging.getLogger("muxfleet.requests")


def write_requests_to_stdout() -> None:
    """Writes requests to standard output, for processes whose output is collected, as Serve's replicas'."""
    handler = logging.StreamHandler(sys.__stdout__ or sys.stdout)  # Serve's own in its place makes text of the lines
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_request(state: Mapping[str, Any], *, endpoint: str, status: int, elapsed_s: float) -> None:
    """`state` is the request's: id, model, report, error, as far as it came. Nothing of prompts, answers or keys."""
    if endpoint not in GENERATION_ENDPOINTS or not logger.isEnabledFor(logging.INFO):
        return
    report: ServiceReport | None = state.get("report")
    error: RouterError | None = state.get("error")
    line = {
        "request_id": state["request_id"],
        "model": state.get("model", ""),
        "tenant": state.get("tenant", ""),
        "endpoint": endpoint,
        "status": status,
        "error": None if error is None else type(error).__name__,
        "elapsed_ms": round(elapsed_s * 1000, 3),
        **({} if report is None else report.as_dict()),
    }
    logger.info("%s", msgspec.json.encode(line).decode())
