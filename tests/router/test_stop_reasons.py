"""Who asks that a text shows what ended it; what does end texts: test_replies_of_an_engine.py."""

import json

import pytest

from router.openai.body import parse_body
from router.openai.chat import ChatCompletionRequest


@pytest.mark.parametrize(
    ("extra", "shows"),
    [
        ({}, False),
        ({"include_stop_str_in_output": False, "no_stop_trim": False}, False),
        ({"include_stop_str_in_output": True}, True),
        ({"no_stop_trim": True}, True),
    ],
)
def test_shows_stop__either_name__is_asked_of_the_unit(extra, shows) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **extra}

    assert parse_body(json.dumps(body).encode(), ChatCompletionRequest).shows_stop is shows
