"""Reads addresses as people write them on a command line."""

import os
import re
from typing import Annotated

import httpx
import typer

from deploy.errors import OptionNotUsable

DEFAULT_URL = "http://127.0.0.1:8000"
_HOST_AND_PORT = re.compile(r"[^/]+:\d+(/.*)?")


def known_url(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """A callback of options and arguments: says before anybody is asked that nobody could answer there. `host:port` is
    taken as curl takes it. Raises OptionNotUsable.
    """
    if text is None:
        return None
    address = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        url = httpx.URL(address)
        url.host.encode("idna")  # as a look-up of it does
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        option = parameter.opts[0] if parameter.param_type_name == "option" else (parameter.metavar or "").strip("[]")
        raise OptionNotUsable(option=option, value=text, remedy=f"write a URL such as {DEFAULT_URL}")
    return address


def file_or_url(parameter: typer.CallbackParam, text: str) -> str:
    """A callback as `known_url`, of what may be a file, too: one that is there is meant, whatever its name."""
    is_url = "://" in text or (_HOST_AND_PORT.fullmatch(text) and not os.path.exists(text))
    return known_url(parameter, text) or text if is_url else text


GatewayUrl = Annotated[
    str, typer.Argument(metavar="[URL]", help="A fleet's gateway; host:port will do.", callback=known_url)
]
