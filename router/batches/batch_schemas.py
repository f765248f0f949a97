"""Files and batches as the OpenAPI document shows them."""

from typing import Literal

from pydantic import BaseModel

from router.batches.batch_record import Status


class FileSchema(BaseModel):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    expires_at: int | None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileSchema]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class LineFaultSchema(BaseModel):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchFaults(BaseModel):
    object: Literal["list"]
    data: list[LineFaultSchema]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchSchema(BaseModel):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[BatchSchema]
    first_id: str | None
    last_id: str | None
    has_more: bool
