"""Has HAProxy answer, where no gateway does, in the shape of the API's errors. Serve would have it say
`Internal Server Error` as text for all of it. What it cannot read as a request, or not in time, it answers with a page
of HTML (400, 408) before it looks at any setting.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

_RETRY_AFTER_S = 5
_ENDED = "The gateway that had this request ended before it answered; send it again."
_NOBODY = f"No gateway answers now; retry in {_RETRY_AFTER_S} s."

# reason, type, code and message, by the status that HAProxy means
_ANSWERS: Mapping[int, tuple[str, str, str, str]] = {
    408: (
        "Request Timeout",
        "invalid_request_error",
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
        head = (
            f"HTTP/1.1 {status} {reason}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"retry-after: {_RETRY_AFTER_S}",
            "x-should-retry: true",
            "connection: close",
        )
        file.write_bytes("\r\n".join((*head, "", body)).encode())
        files.append(f"    errorfile {status} {file}\n")
    without = re.sub(rf"^\s*errorfile (?:{'|'.join(map(str, _ANSWERS))}) .*\n", "", text, flags=re.MULTILINE)
    without = re.sub(_NO_APPLICATION, r"\g<1>http-request deny deny_status 503\n", without)
    if _NO_GATEWAY_LEFT not in without:
        without = re.sub(_FALLBACK, rf"\g<1>{_NO_GATEWAY_LEFT}\n\g<0>", without)
    return re.sub(r"^defaults\b.*\n", lambda found: found[0] + "".join(files), without, flags=re.MULTILINE)
