"""Names tools in errors by their places in the request, of which the chat has those only that the client runs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from router.errors import InvalidRequest
from router.responses.client_tools import client_tools
from router.responses.responses_body import ResponsesBody

_TOOL = re.compile(r"tools\[(\d+)\]")


@contextmanager
def named_as_sent(body: ResponsesBody) -> Iterator[None]:
    """Inside, what the chat refuses is raised as an error of this body. Raises InvalidRequest."""
    try:
        yield
    except InvalidRequest as error:
        param = error.param or ""
        found = _TOOL.match(param)
        if found is None:
            raise
        called = list(client_tools(body))
        named = called[int(found.group(1))].place + param[found.end() :]
        raise type(error)(error.message.replace(param, named), param=named, code=error.code) from error
