"""A path that the API does not have is answered with the one that was meant: most come of a wrong base URL."""

from collections.abc import Iterable


def meant_path(path: str, known: Iterable[str]) -> str | None:
    """Returns the longest known path that this one ends with, whatever its slashes and capitals, be it without its /v1.

    >>> meant_path("/chat/completions", ["/v1/completions", "/v1/chat/completions"])
    '/v1/chat/completions'
    >>> meant_path("/v1//v1/Models/", ["/v1/models"]), meant_path("/v1/rerank", ["/v1/models"])
    ('/v1/models', None)
    """
    asked = "/" + "/".join(part for part in path.lower().split("/") if part)
    return max((one for one in known if asked.endswith(one.removeprefix("/v1"))), key=len, default=None)
