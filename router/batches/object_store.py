"""Named bytes in a folder or behind any URL that fsspec knows. Every call blocks: `StoreThreads` calls."""

import asyncio
import contextlib
import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, ParamSpec, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

_CHUNK_BYTES = 1024 * 1024


class StoreUnusable(Exception):
    """The place cannot be written to, or nothing that is installed knows its protocol."""


class ObjectStore:
    """Paths are relative, with slashes. Raises OSError where the place fails."""

    def __init__(self, url: str) -> None:
        """Raises StoreUnusable. Behind a URL it makes no bucket: one of a name that is wrong would be made, too."""
        try:
            with _as_os_errors():
                self._fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
            self._root = root.rstrip("/")
            self._is_local = isinstance(self._fs, LocalFileSystem)
            self.write(".writable", b"")
        except (OSError, ImportError, ValueError, TypeError, AttributeError) as error:
            raise StoreUnusable(f"{url}: {error}") from error

    def read(self, path: str) -> bytes | None:
        """Returns None where there is nothing."""
        try:
            with _as_os_errors():
                return bytes(self._fs.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Puts all of it in the place of what was there."""
        if not self._is_local:
            with _as_os_errors():
                self._fs.pipe_file(self._at(path), data)
            return
        with self._draft(path) as draft:
            _write_through(draft, data)
            draft.replace(self._at(path))

    def create(self, path: str, data: bytes) -> bool:
        """Returns False, and changes nothing, where something is. In a folder this holds also against other processes;
        behind a URL as far as its filesystem's `mode="create"` does.
        """
        try:
            if self._is_local:
                with self._draft(path) as draft:
                    _write_through(draft, data)
                    os.link(draft, self._at(path))
            else:
                with _as_os_errors():
                    self._fs.pipe_file(self._at(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, path: str, source: IO[bytes]) -> int:
        """Copies a file; returns its bytes."""
        if not self._is_local:
            with _as_os_errors(), self._fs.open(self._at(path), "wb") as copy:
                return _copied(source, copy)
        with self._draft(path) as draft:
            with draft.open("wb") as copy:
                num_bytes = _copied(source, copy)
                _flush_through(copy)
            draft.replace(self._at(path))
        return num_bytes

    def open(self, path: str) -> IO[bytes]:
        """Opens it for reading. Raises FileNotFoundError."""
        with _as_os_errors():
            opened = self._fs.open(self._at(path), "rb")
        # Files behind a URL read lines of any length, however long, and take no bound.
        return cast(IO[bytes], opened if self._is_local else io.BufferedReader(opened, _CHUNK_BYTES))

    def chunks(self, path: str) -> Iterator[bytes]:
        with self.open(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def names(self, folder: str) -> list[str]:
        """Returns what lies in a folder, sorted; nothing where there is none."""
        try:
            with _as_os_errors():
                self._fs.invalidate_cache()
                found = self._fs.ls(self._at(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, path: str) -> bool:
        """Returns whether there was anything."""
        try:
            with _as_os_errors():
                self._fs.rm(self._at(path), recursive=True)
        except FileNotFoundError:
            return False
        return True

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextlib.contextmanager
    def _draft(self, path: str) -> Iterator[Path]:
        """Names a file beside it that is gone afterwards, also where the disk was full before it was whole."""
        at = Path(self._at(path))
        with contextlib.suppress(FileExistsError):
            at.parent.mkdir(parents=True, exist_ok=True)
        draft = at.with_name(f".{at.name}.{secrets.token_hex(4)}")
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)


def _write_through(draft: Path, data: bytes) -> None:
    with draft.open("wb") as file:
        file.write(data)
        _flush_through(file)


def _flush_through(file: IO[bytes]) -> None:
    """Else a name may be kept when the power fails, and what was said to be kept under it be empty."""
    file.flush()
    os.fsync(file.fileno())


def _copied(source: IO[bytes], copy: IO[bytes]) -> int:
    shutil.copyfileobj(source, copy, _CHUNK_BYTES)
    return int(copy.tell())


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Some filesystems tell what fails by exceptions of their own (botocore's, gcsfs's), which are no OSError."""
    try:
        yield
    except (OSError, ImportError, ValueError, TypeError, AttributeError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


_THREADS = 8
P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    """Calls the store on threads: a place that hangs (a dead NFS server) takes none that others wait for."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batches")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Waits for nothing: a call that hangs would be waited for for ever."""
        self._pool.shutdown(wait=False, cancel_futures=True)
