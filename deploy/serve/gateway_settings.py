"""Says what a gateway's replica reads where it runs: its keys, and the folder of its batches.

Its application carries these to the replica, which imports this file and with it no fleet file and no planner.
"""

from dataclasses import dataclass
from pathlib import Path

from deploy.environment import state_folder
from router.access.api_keys import KeyRing
from router.batches.batch_settings import BatchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOfFile:
    path: str

    def __call__(self) -> KeyRing:
        """Raises KeyFileError."""
        from deploy.fleet_file.key_file import read_key_file  # brings the fleet file, for who has keys only

        return read_key_file(Path(self.path)).ring()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesHere:
    """`folder` None: its default, which is that of the replica's user."""

    folder: str | None
    max_file_bytes: int
    max_lines: int
    max_line_bytes: int
    lines_at_once: int
    keep_s: float | None
    max_key_bytes: int | None

    def __call__(self) -> BatchSettings:
        return BatchSettings(
            url=str(state_folder() / "batches") if self.folder is None else self.folder,
            max_file_bytes=self.max_file_bytes,
            max_lines=self.max_lines,
            max_line_bytes=self.max_line_bytes,
            lines_at_once=self.lines_at_once,
            keep_s=self.keep_s,
            max_key_bytes=self.max_key_bytes,
        )
