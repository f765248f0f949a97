"""Stands in for the progress bars of huggingface_hub: tells instead of drawing."""

from threading import Lock

from tqdm import tqdm  # type: ignore[import-untyped]  # it has no types

from pdmux_actor.models.load_progress import OnProgress

_BYTES = "B"


class DownloadBar(tqdm):  # type: ignore[misc]  # it has no types
    """The library makes several: of bytes that come, of bytes on disk, of files. This one tells of bytes, as soon as
    there are some; the total grows while files are begun. Files come on threads of their own, which take turns to tell.
    """

    def __init__(self, on_progress: OnProgress, *args: object, **options: object) -> None:
        self._on_progress = on_progress
        self._told_bytes = 0
        self._telling = Lock()
        super().__init__(*args, **{**options, "file": _Nowhere(), "disable": False})

    def update(self, n: float | None = 1) -> bool | None:
        shown: bool | None = super().update(n)
        with self._telling:
            if self.unit == _BYTES and self.n > self._told_bytes:
                self._told_bytes = int(self.n)
                self._on_progress(self._told_bytes, max(int(self.total or 0), self._told_bytes))
        return shown


class _Nowhere:
    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass
