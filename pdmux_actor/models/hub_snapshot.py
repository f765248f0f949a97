"""Files of a model on Hugging Face, through the local cache.

What downloads is imported when it is asked for: with its HTTP client it is a third of what an engine's process imports
before it is ready, and most read a folder.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock

from huggingface_hub import constants
from tqdm import tqdm  # type: ignore[import-untyped]  # it has no types

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.load_progress import OnProgress

# The weights once more, as their makers' own code reads them: Mistral's beside those of this layout, OpenAI's below.
_TWICE = ("consolidated*.safetensors", "*/*.safetensors")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def downloaded(
    model: str, repository: str, revision: str | None, patterns: Sequence[str], on_progress: OnProgress | None = None
) -> Path:
    """Returns the folder that holds the files of these patterns; a download goes on where it broke off. Without
    `on_progress` the library draws its own bars.

    Raises:
        ModelLoadError: the hub does not give them.
    """
    from huggingface_hub import snapshot_download

    bars = None if on_progress is None else partial(DownloadBar, on_progress)
    with _told_plainly(model, repository, revision):
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(_TWICE),
            tqdm_class=bars,  # type: ignore[arg-type]  # it calls it, no more
        )
    return Path(folder)


def cached_folder(repository: str, revision: str | None) -> Path | None:
    """Returns the folder of what was downloaded of it before, which may be a part: the library gives no such folder
    while it is one. Asks nobody.
    """
    from huggingface_hub.file_download import repo_folder_name

    stored = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    reference = stored / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    folder = stored / "snapshots" / (commit or "main")
    return folder if folder.is_dir() else None


def gguf_names(model: str, repository: str, revision: str | None) -> list[str]:
    """Returns the GGUF files that the hub has of it. Raises ModelLoadError."""
    from huggingface_hub import snapshot_download

    with _told_plainly(model, repository, revision):
        files = snapshot_download(repository, revision=revision, allow_patterns=["*.gguf"], dry_run=True)
    return sorted(file.filename for file in files)


@contextmanager
def _told_plainly(model: str, repository: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise ModelLoadError(
            model=model,
            reason=f"{repository!r} is neither a folder nor a Hugging Face id ({error})",
            remedy="give an existing folder or an id such as Qwen/Qwen3-0.6B",
        ) from error
    except OSError as error:
        if error.errno not in _FULL and error.filename is None:  # of the network
            raise _failed(model, repository, revision, error) from error
        raise ModelLoadError(
            model=model,
            reason=f"{repository!r} cannot be downloaded into {constants.HF_HUB_CACHE}: {error.strerror}",
            remedy="make room there, or set HF_HOME to a folder of yours with room",
        ) from error
    except Exception as error:  # a connection that breaks off, a proxy: the library lets its HTTP client's through
        raise _failed(model, repository, revision, error) from error


def _failed(model: str, repository: str, revision: str | None, error: Exception) -> ModelLoadError:
    return ModelLoadError(
        model=model,
        reason=f"{repository!r} (revision {revision or 'main'}) is no local folder and the download failed: "
        f"{' '.join(str(error).split())}",
        remedy=f"check the id, the revision, the network to {constants.ENDPOINT} and HF_TOKEN, name a mirror in "
        "HF_ENDPOINT, or give a local folder",
    )


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
