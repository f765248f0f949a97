"""A line of a batch is answered as its endpoint answers a request."""

import msgspec
import pytest

from router.batches.batch_record import BatchRequest
from router.batches.input_lines import InputLine
from router.batches.line_runner import result_of
from router.errors import InvalidRequest


@pytest.mark.parametrize(
    ("endpoint", "param"), [("/v1/chat/completions", "max_tokens"), ("/v1/responses", "max_output_tokens")]
)
async def test_line__refused__error_has_the_names_of_its_endpoint(endpoint, param) -> None:
    batch = BatchRequest(
        id="b",
        owner="",
        tenant="",
        endpoint=endpoint,
        input_file_id="f",
        completion_window="24h",
        created_at=0,
        expires_at=1,
    )

    async def refuse(*_: object) -> bytes:
        raise InvalidRequest("Invalid value for 'max_tokens': 0.", param="max_tokens")

    result = await result_of(InputLine(1, "mine", b"{}"), batch, refuse)

    error = msgspec.json.decode(result.line)["response"]["body"]["error"]
    assert (error["param"], error["message"]) == (param, f"Invalid value for '{param}': 0.")
