"""Every error has OpenAI's shape, the right status, and a request id."""

import json

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer

from pdmux_actor.lease import ModelPhase
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router import errors
from router.error_bodies import SHAPES, error_response
from router.http.app import create_app
from router.limits import GatewayLimits
from router.serving.gateway import Gateway
from router.view import FleetView

MODEL = "demo/bytes"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
LIMITS = GatewayLimits(max_body_bytes=20_000, hold_s=1.0)


@pytest.fixture
async def http(serve):
    served = await serve(FakeUnit(), limits=LIMITS)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        client.served = served
        yield client


def assert_error(reply: httpx.Response, status: int, code: str, param: str | None = None) -> dict:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["message"]
    return error


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b'{"model": NaN}', b'"\xff"', b"[" * 5000, b'{"model": "\\ud800"}', b'{"seed": 1e999}'],
)
async def test_bad_json__any_kind__400(http, body: bytes) -> None:
    reply = await http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})

    assert_error(reply, 400, "invalid_json")


@pytest.mark.parametrize("body", [[], 1, True, "text"])
async def test_body__not_an_object__400(http, body) -> None:
    assert_error(await http.post("/v1/completions", json=body), 400, "invalid_type")


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"temperature": 2.5}, "invalid_value", "temperature"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"n": 17}, "invalid_value", "n"),
        ({"n": 0}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_type", "max_tokens"),
        ({"max_tokens": 10**30}, "invalid_value", "max_tokens"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"stop": ["x"] * 17}, "invalid_type", "stop"),
        ({"stop": [""]}, "invalid_type", "stop"),
        ({"seed": 2**64}, "invalid_value", "seed"),
        ({"model": 5}, "invalid_type", "model"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "unsupported_parameter", "messages[0].audio"),
        ({"stream_options": {"include_usage": "yes"}}, "invalid_type", "stream_options.include_usage"),
        ({"presence_penalty": 2.5}, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"min_p": 1.5}, "invalid_value", "min_p"),
        ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "invalid_value", "logit_bias.five"),
        ({"logit_bias": {"99999999": 1}}, "invalid_value", "logit_bias"),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
        ({"stop_token_ids": [99999999]}, "invalid_value", "stop_token_ids"),
        ({"bad_words": [""]}, "invalid_value", "bad_words[0]"),
        ({"structured_outputs": {"choice": []}}, "invalid_value", "structured_outputs.choice"),
        ({"structured_outputs": {"shape": "x"}}, "invalid_value", "structured_outputs.shape"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "invalid_value", "guided_choice"),
        ({"guided_json": "{"}, "invalid_value", "guided_json"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"response_format": {"type": "poem"}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "any"}}},
            "invalid_type",
            "response_format.json_schema.schema",
        ),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "invalid_value", "top_logprobs"),
        ({"moon_phase": "full"}, "unknown_parameter", "moon_phase"),
    ],
)
async def test_chat__bad_parameter__400_names_it(http, change: dict, code: str, param: str) -> None:
    error = assert_error(await http.post("/v1/chat/completions", json={**CHAT, **change}), 400, code, param)

    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 3}, "Invalid value for 'temperature': Input should be less than or equal to 2, not 3."),
        ({"n": True}, "Invalid value for 'n': Input should be a valid integer, not true."),
        ({"stop": "private" * 5, "n": "private"}, "Invalid value for 'n': Input should be a valid integer."),
        ({"verbosity": "private"}, "'verbosity' with this value is not implemented; leave it out."),
    ],
)
async def test_chat__bad_parameter__message_has_the_number_and_no_text_of_the_client(http, change, message) -> None:
    reply = await http.post("/v1/chat/completions", json={**CHAT, **change})

    assert reply.json()["error"]["message"] == message


async def test_health_and_ready__head__answer_as_get_without_a_body(http) -> None:
    await http.served.gateway._tokenizers.of(http.served.gateway.card(MODEL))
    ready = [await http.head(path) for path in ("/health", "/ready")]
    http.served.show()
    unready = [await http.head(path) for path in ("/health", "/ready")]

    assert [(reply.status_code, reply.content) for reply in ready] == [(200, b""), (200, b"")]
    assert [(reply.status_code, reply.content) for reply in unready] == [(200, b""), (503, b"")]


async def test_chat__image__400_names_its_place(http) -> None:
    content = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "http://x"}}]
    reply = await http.post("/v1/chat/completions", json={**CHAT, "messages": [{"role": "user", "content": content}]})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages[0].content[1]")
    assert error["message"] == (
        "'messages[0].content[1]' is not text: this API takes content parts of type 'text' only; leave it out."
    )


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": [1, "a"]}, "invalid_type", "prompt"),
        ({"prompt": [70000]}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "invalid_value", "prompt"),
        ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
        ({"suffix": "end"}, "unsupported_parameter", "suffix"),
    ],
)
async def test_completions__bad_parameter__400_names_it(http, change: dict, code: str, param: str) -> None:
    reply = await http.post("/v1/completions", json={**COMPLETION, **change})

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"].startswith(param)
    if code == "unsupported_parameter":
        assert error["code"] == code


async def test_harmless_parameters__every_one__are_accepted(http) -> None:
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "stop": None,
        "n": None,
        "temperature": None,
        "reasoning_effort": None,
        "min_p": 0,
        "repetition_penalty": 1.0,
    }
    reply = await http.post("/v1/chat/completions", json={**CHAT, **harmless})

    assert reply.status_code == 200, reply.text


async def test_prompt__too_long__400_with_the_numbers(http) -> None:
    long = await http.post("/v1/completions", json={**COMPLETION, "prompt": "x" * 5000})
    greedy = await http.post("/v1/completions", json={**COMPLETION, "max_tokens": 4095})

    assert "4096 tokens. However, you requested 5003 tokens (5000 in the prompt, 3" in long.json()["error"]["message"]
    assert_error(long, 400, "context_length_exceeded", "prompt")
    assert_error(greedy, 400, "context_length_exceeded", "prompt")


async def test_body__too_large__413(http) -> None:
    announced = await http.post("/v1/completions", json={**COMPLETION, "prompt": "x" * 30_000})

    async def parts():
        for _ in range(30):
            yield b"x" * 1000

    chunked = await http.post("/v1/completions", content=parts(), headers={"content-type": "application/json"})

    assert_error(announced, 413, "request_too_large")
    assert_error(chunked, 413, "request_too_large")


async def test_content_type__not_json__415(http) -> None:
    reply = await http.post("/v1/completions", content=json.dumps(COMPLETION), headers={"content-type": "text/plain"})

    assert_error(reply, 415, "unsupported_media_type")


async def test_path_and_method__unknown__404_and_405_with_allow(http) -> None:
    assert_error(await http.post("/v1/images/generations", json={}), 404, "unknown_url")
    assert assert_error(await http.get("/v1/models/"), 404, "unknown_url")["message"].endswith("mean /v1/models?")
    for model in ("no/such", "demo/bytes%0A"):
        assert_error(await http.get(f"/v1/models/{model}"), 404, "model_not_found", "model")
    wrong = await http.get("/v1/chat/completions")
    assert_error(wrong, 405, "method_not_supported")
    assert wrong.headers["allow"] == "POST"


async def test_model_id__slash_raw_or_escaped__is_found(http) -> None:
    for path in ("/v1/models/demo/bytes", "/v1/models/demo%2Fbytes"):
        reply = await http.get(path)
        assert reply.status_code == 200
        assert reply.json()["id"] == MODEL


async def test_model__offered_but_no_unit__503_after_the_hold(http) -> None:
    http.served.show(models=(MODEL, "cold"))
    reply = await http.post("/v1/chat/completions", json={**CHAT, "model": "cold"})

    assert_error(reply, 503, "no_capacity")
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    assert reply.headers["x-should-retry"] == "true"


async def test_model__loading__503_says_so(http) -> None:
    unit = http.served.units[0]
    unit.models = ("cold",)
    http.served.show(unit, models=("cold",), phase=ModelPhase.LOADING)
    reply = await http.post("/v1/chat/completions", json={**CHAT, "model": "cold"})

    assert_error(reply, 503, "model_loading")
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/v1/models/cold")).json()["status"] == "loading"


async def test_queue__full__429_with_retry_after(serve) -> None:
    served = await serve(FakeUnit(), limits=GatewayLimits(max_queued=0))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=COMPLETION)
        metrics = (await http.get("/metrics")).text

    error = assert_error(reply, 429, "slow_down")
    assert error["type"] == "rate_limit_error"
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    assert reply.headers["x-should-retry"] == "true"
    assert 'muxfleet_requests_shed_total{model="demo/bytes"} 1.0' in metrics


async def test_engine__fails_request__500_or_continues_by_retryable(http) -> None:
    unit = http.served.units[0]
    unit.fail = lambda _: Delta(stream=0, sequence=0, text="", token_ids=[], finish=FinishReason.ERROR, error="no room")
    reply = await http.post("/v1/completions", json=COMPLETION)
    streamed = await http.post("/v1/completions", json={**COMPLETION, "stream": True})

    assert_error(reply, 500, "generation_failed")
    assert "no room" in reply.json()["error"]["message"]
    assert_error(streamed, 500, "generation_failed")
    assert len(unit.requests) == 2


async def test_template__missing_or_refusing__400(http, tmp_path) -> None:
    refused = await http.post("/v1/chat/completions", json={**CHAT, "messages": [{"role": "tool", "content": "x"}]})
    http.served.folder = write_byte_tokenizer(tmp_path / "plain", chat_template=None)
    http.served.show(http.served.units[0])
    missing = await http.post("/v1/chat/completions", json=CHAT)

    assert_error(refused, 400, "chat_template_error", "messages")
    assert "no tools here" in refused.json()["error"]["message"]
    assert_error(missing, 400, "no_chat_template", "messages")


async def test_tokenizer__does_not_load__503_without_the_path(http, tmp_path) -> None:
    http.served.folder = tmp_path / "nothing-here"
    http.served.show(http.served.units[0])
    reply = await http.post("/v1/chat/completions", json=CHAT)

    listed = (await http.get("/v1/models")).json()["data"]
    one = (await http.get(f"/v1/models/{MODEL}")).json()
    ready = await http.get("/ready")

    assert_error(reply, 503, "tokenizer_unavailable")
    assert reply.headers["retry-after"]
    assert "nothing-here" not in reply.text
    assert [m["status"] for m in listed] == [one["status"]] == ["failed"]
    assert ready.status_code == 503, "the only model refuses every request"


async def _decisions(unit: str, last: int) -> bytes:
    return b"{}"


async def test_gateway__before_its_first_view__503_to_try_again_wherever_the_fleet_is_asked_for() -> None:
    gateway = Gateway(LIMITS)  # as a rollout starts it: nobody has told it of a model or a unit
    transport = httpx.ASGITransport(create_app(gateway, read_decisions=_decisions))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        replies = [
            await http.post("/v1/completions", json=COMPLETION),
            await http.post("/v1/chat/completions", json=CHAT),
            await http.post("/v1/chat/completions", json=CHAT | {"stream": True}),
            await http.get("/v1/models"),
            await http.get(f"/v1/models/{MODEL}"),
            await http.get("/units/u1/decisions"),
            await http.get("/ready"),
        ]
        health = await http.get("/health")
        gateway.update_view(FleetView(models=(), units=(), stream_token="t"))
        after = await http.post("/v1/completions", json=COMPLETION)
        listed = await http.get("/v1/models")
    await gateway.close()

    for reply in replies:
        assert_error(reply, 503, "no_capacity")
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["x-should-retry"] == "true"
    assert health.status_code == 200
    assert_error(after, 404, "model_not_found", "model")
    assert listed.json()["data"] == []


async def test_own_bug__any__500_without_internals(http, monkeypatch) -> None:
    def broken(*_):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(http.served.gateway, "_enter", broken)
    reply = await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "abc-1"})

    error = assert_error(reply, 500, "internal_error")
    assert "secret" not in reply.text
    assert "abc-1" in error["message"]


async def test_request_id__echoed_cleaned_or_made(http) -> None:
    echoed = await http.get("/health", headers={"x-request-id": "my-id_1"})
    cleaned = await http.get("/health", headers={"x-request-id": "a b\tc<script>" + "x" * 500})
    made = await http.get("/health")

    assert echoed.headers["x-request-id"] == "my-id_1"
    assert cleaned.headers["x-request-id"].startswith("abcscript")
    assert len(cleaned.headers["x-request-id"]) <= 128
    assert len(made.headers["x-request-id"]) == 32


def test_table__every_error__has_one_row_and_a_bounded_retry_after() -> None:
    def leaves(kind: type) -> set[type]:
        return {kind}.union(*(leaves(k) for k in kind.__subclasses__()))

    assert set(SHAPES) == leaves(errors.RouterError) - {errors.RouterError}
    for seconds in (-5, 0, 7, 10**6):
        reply = error_response(errors.Overloaded(model="m", retry_after_s=seconds))
        assert 1 <= int(reply.headers["retry-after"]) <= 120
