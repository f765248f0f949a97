"""A hub for tests: enough of Hugging Face's HTTP API to list a model's files and to give them, also from the middle."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RANGE = re.compile(r"bytes=(\d+)-")


class FakeHub(ThreadingHTTPServer):
    """Gives `files` of model `repo` to those with `token`. `break_off` are files of which a first answer ends early;
    `cuts`: it hangs up instead of an answer.
    """

    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes], token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files, self.token = repo, files, token
        self.break_off: set[str] = set()
        self.cuts = False
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, range

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Range")))
        if hub.cuts:
            self.close_connection = True
            return
        if self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body=with_body)
        elif path.startswith(f"/api/models/{hub.repo}/tree/"):
            self._send(200, json.dumps([self._entry(name) for name in hub.files]).encode(), with_body=with_body)
        elif path.startswith(f"/api/models/{hub.repo}"):
            siblings = [{"rfilename": name} for name in hub.files]
            info = {"id": hub.repo, "sha": COMMIT, "siblings": siblings, "private": False}
            self._send(200, json.dumps(info).encode(), with_body=with_body)
        elif path.startswith(f"/{hub.repo}/resolve/"):
            self._give(path.rpartition("/")[2], with_body=with_body)
        else:
            self._send(404, b"{}", with_body=with_body)

    def _entry(self, name: str) -> dict[str, object]:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}

    def _give(self, name: str, *, with_body: bool) -> None:
        content = self.server.files[name]
        asked = _RANGE.match(self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if with_body and name in self.server.break_off:
            self.server.break_off.discard(name)
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self._send(206 if asked else 200, content[first:], headers, with_body=with_body)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *, with_body: bool) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def fake_hub(repo: str, files: Mapping[str, bytes], *, token: str) -> Iterator[FakeHub]:
    hub = FakeHub(repo, files, token)
    serving = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    serving.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        serving.join()
