"""The console's page and what it loads: static files of this package, the same for everybody."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from router.errors import PathNotFound

_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "html": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
    }
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)
_PAGE = "index.html"


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    etag: str
    media_type: str


def add_console(app: FastAPI) -> None:
    """They hold nothing of the fleet: what the page shows, it asks for with its user's key."""
    files = dict(_read(resources.files("router.http").joinpath("console"), ""))

    @app.get("/console", include_in_schema=False)
    async def console(request: Request) -> Response:
        return _answer(files[_PAGE], request)

    @app.get("/console/", include_in_schema=False)
    async def console_folder() -> Response:
        return RedirectResponse("../console", status_code=308)

    @app.get("/console/{name:path}", include_in_schema=False)
    async def console_file(name: str, request: Request) -> Response:
        file = files.get(name)
        if file is None:
            raise PathNotFound(method=request.method, path=request.url.path, meant=None)
        return _answer(file, request)


def _answer(file: _File, request: Request) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _read(folder: Traversable, prefix: str) -> Mapping[str, _File]:
    found: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif (media_type := _TYPES.get(entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[f"{prefix}{entry.name}"] = _File(content, etag, media_type)
    return found
