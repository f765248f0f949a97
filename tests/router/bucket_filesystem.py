"""A filesystem of fsspec's like those of object stores: flat keys, files in ranges, errors of another library."""

import io
import threading

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class LibraryError(Exception):
    """Is no OSError, as botocore's are none."""


class Bucket:
    """What it holds, and how it behaves just now."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.is_down = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def asked(self) -> None:
        self.goes_on.wait()
        if self.is_down:
            raise LibraryError("could not connect to the endpoint")


class BucketFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.bucket.held[self.path][start:end]

    def _initiate_upload(self) -> None:
        self.parts = io.BytesIO()

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.write(self.buffer.getvalue())
        if final:
            self.fs.bucket.held[self.path] = self.parts.getvalue()
        return True


class BucketFileSystem(AbstractFileSystem):
    protocol = "bucket"
    cachable = False
    bucket: Bucket

    def _open(self, path, mode="rb", block_size=None, **options):
        self.bucket.asked()
        if mode == "rb" and path not in self.bucket.held:
            raise FileNotFoundError(path)
        return BucketFile(self, path, mode, **options)

    def info(self, path, **options):
        self.bucket.asked()
        path = self._strip_protocol(path)
        if path not in self.bucket.held:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.bucket.held[path]), "type": "file"}

    def ls(self, path, detail=True, **options):
        self.bucket.asked()
        prefix = f"{path.rstrip('/')}/"
        names = {prefix + key[len(prefix) :].partition("/")[0] for key in self.bucket.held if key.startswith(prefix)}
        if not names:
            raise FileNotFoundError(path)
        return sorted(names)

    def pipe_file(self, path, value, mode="overwrite", **options):
        self.bucket.asked()
        if mode == "create" and path in self.bucket.held:
            raise FileExistsError(path)
        self.bucket.held[path] = bytes(value)

    def cat_file(self, path, start=None, end=None, **options):
        self.info(path)
        return self.bucket.held[path]

    def rm(self, path, recursive=False, maxdepth=None):
        self.bucket.asked()
        gone = [key for key in self.bucket.held if key == path or key.startswith(f"{path}/")]
        if not gone:
            raise FileNotFoundError(path)
        for key in gone:
            del self.bucket.held[key]


def register(bucket: Bucket) -> str:
    """Returns the URL of a folder in it."""
    of_test = type("OfTest", (BucketFileSystem,), {"bucket": bucket})
    fsspec.register_implementation("bucket", of_test, clobber=True)
    return "bucket://held/batches"
