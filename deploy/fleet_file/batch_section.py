"""The fleet file's `gateway.batches`."""

from typing import Annotated

from pydantic import ByteSize, Field, PositiveInt

from deploy.fleet_file.section import Section
from deploy.fleet_file.setting_types import Size


class BatchSection(Section):
    """Says where `/v1/files` and `/v1/batches` keep what clients upload and what comes of it, and what bounds that."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """A folder (relative to this file), or any URL that fsspec knows, as in s3://bucket/batches, whose package (s3fs)
    is installed. Gateways on several nodes need one that all reach. Default: ~/.local/state/muxfleet/batches."""
    max_file_bytes: Size = ByteSize(100 * 1024 * 1024)
    max_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Of one batch."""
    lines_at_once: PositiveInt = 32
    """Lines of all batches that one gateway replica works on; they wait for capacity that nothing else needs."""
    keep_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """Files are deleted so long after they were made, and batches after they ended; 0 keeps them until a client deletes
    them. A client can ask for less (`expires_after`)."""
    max_key_bytes: Size | None = None
    """Of all files of an API key, or of everyone where there are no keys; results of batches count, and are never
    refused. Default: no bound."""
