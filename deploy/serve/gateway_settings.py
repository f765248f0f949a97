"""Says what a gateway's replica reads where it runs: its keys, and the folder of its batches.

Its application carries these to the replica, which imports this file and with it no fleet file and no planner.
"""

from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class BatchesHere:
    """An empty `url` is the default, a folder of the replica's user for each fleet: batches of another one would be
    asked of models that this one does not have.
    """

    fleet: str
    settings: BatchSettings

    def __call__(self) -> BatchSettings:
        if self.settings.url:
            return self.settings
        folder = f"{self.fleet}.batches" if self.fleet else "batches"
        return replace(self.settings, url=str(state_folder() / folder))
