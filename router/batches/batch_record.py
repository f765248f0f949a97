"""A batch as it is kept: what was asked for, which never changes, and how far it has come."""

import secrets
from typing import Any, Literal

import msgspec

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expired"]
TERMINAL: frozenset[Status] = frozenset({"completed", "failed", "cancelled", "expired"})


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`owner` is the API key that made it, `tenant` its name. Times are Unix seconds."""

    id: str
    owner: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_keep_s: int | None = None


def batch_id_at(now_s: float) -> str:
    """Returns a new one. Ids sort by time."""
    return f"batch_{int(now_s * 1e9):016x}{secrets.token_hex(8)}"


def made_s(batch_id: str) -> float:
    return int(batch_id.removeprefix("batch_")[:16], 16) / 1e9


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """Says what is wrong with a line of the input; lines count from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """Written by the replica that works on the batch, and by nobody else."""

    status: Status = "validating"
    total: int = 0
    completed: int = 0
    failed: int = 0
    model: str | None = None
    faults: list[LineFault] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    times: dict[str, int] = {}
    """By status: when it came to it."""

    def at(self, status: Status, now_s: float, **changes: Any) -> "BatchState":  # noqa: ANN401 - fields of the struct
        times = {**self.times, status: int(now_s)}
        return msgspec.structs.replace(self, status=status, times=times, **changes)


def batch_document(request: BatchRequest, state: BatchState, cancelling_at: int | None) -> dict[str, Any]:
    """OpenAI's batch object."""
    status = state.status
    if cancelling_at is not None and status not in TERMINAL:
        status = "cancelling"
    faults = [msgspec.structs.asdict(fault) for fault in state.faults]
    return {
        "id": request.id,
        "object": "batch",
        "endpoint": request.endpoint,
        "model": state.model,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": status,
        "output_file_id": state.output_file_id,
        "error_file_id": state.error_file_id,
        "created_at": request.created_at,
        "in_progress_at": state.times.get("in_progress"),
        "expires_at": request.expires_at,
        "finalizing_at": state.times.get("finalizing"),
        "completed_at": state.times.get("completed"),
        "failed_at": state.times.get("failed"),
        "expired_at": state.times.get("expired"),
        "cancelling_at": cancelling_at,
        "cancelled_at": state.times.get("cancelled"),
        "request_counts": {"total": state.total, "completed": state.completed, "failed": state.failed},
        "metadata": request.metadata,
    }
