"""Says where files and batches are kept, and what bounds them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """`url` is a folder or any URL that fsspec knows. A gateway replica works on `lines_at_once` of all its batches.

    A replica that works on a batch says so every third of `lease_s`; when it has not for so long, another goes on.
    Results are written every `flush_s`, later on when the time of the batch has grown by a hundredth: a crash costs the
    work since then.
    Files, and batches that have ended, are kept for `keep_s`; a key's files together have `max_key_bytes`.
    """

    url: str
    max_file_bytes: int = 100 * 1024 * 1024
    max_lines: int = 50_000
    max_line_bytes: int = 8 * 1024 * 1024
    lines_at_once: int = 32
    keep_s: float | None = None
    max_key_bytes: int | None = None
    lease_s: float = 30.0
    poll_s: float = 5.0
    flush_s: float = 2.0
    upload_timeout_s: float = 600.0
    answer_timeout_s: float = 60.0
    """Of the store."""
    sweep_s: float = 3600.0
