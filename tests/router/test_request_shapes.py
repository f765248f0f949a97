"""What a request may say: template arguments, whole numbers, bodies of any size; and what a browser's page may."""

import json

import httpx
import pytest
from fake_unit import CHAT_TEMPLATE, FakeUnit, write_byte_tokenizer

from router.http.app import create_app
from router.serving.gateway import Gateway

MODEL = "demo/bytes"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 3}


def assert_error(reply: httpx.Response, status: int, code: str, param: str) -> dict:
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param), error
    return error


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"chat_template": "{% for a in range(99999) %}{% endfor %}"}, "chat_template"),
        ({"tokenize": True}, "tokenize"),
        ({"tools": []}, "tools"),
        ({"documents": []}, "documents"),
        ({"return_dict": True}, "return_dict"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": []}, "messages"),
        ({"color": "green", "moon": "full"}, "moon"),
    ],
)
async def test_template_arguments__not_what_the_template_reads__400_names_it_and_what_is(
    http, tmp_path, arguments: dict, name: str
) -> None:
    template = "{% if color %}{{ color }}{% endif %}{% if tools %}{{ tools }}{% endif %}" + CHAT_TEMPLATE
    http.served.folder = write_byte_tokenizer(tmp_path / "colored", chat_template=template)
    http.served.show(http.served.units[0])
    refused = await http.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": arguments})
    taken = await http.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": {"color": "green"}})

    error = assert_error(refused, 400, "unknown_parameter", f"chat_template_kwargs.{name}")
    assert error["message"].endswith("it takes 'color'.")
    assert taken.status_code == 200
    assert bytes(http.served.units[0].requests[0].prompt_token_ids).startswith(b"green<user>")


@pytest.mark.parametrize("field", ["max_tokens", "n", "seed", "top_k", "min_tokens"])
async def test_integers__without_a_fraction__are_integers_to_json_schema(http, field: str) -> None:
    whole = await http.post("/v1/completions", json={**COMPLETION, field: 3.0})
    broken = await http.post("/v1/completions", json={**COMPLETION, field: 3.5})

    assert whole.status_code == 200, whole.text
    assert_error(broken, 400, "invalid_type", field)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_large_and_small_bodies__same_fault__same_answer(serve, size: int) -> None:
    served = await serve(FakeUnit())
    text = "x" * size
    faults = {
        "messages[1].content[0]": [
            {"role": "user", "content": text},
            {"role": "user", "content": [{"type": "image_url"}]},
        ],
        "messages[1].role": [{"role": "user", "content": text}, {"role": "boss", "content": "x"}],
        "messages[0].content": [{"role": "user", "content": 5}, {"role": "user", "content": text}],
    }
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        for place, messages in faults.items():
            reply = await http.post("/v1/chat/completions", json={**CHAT, "messages": messages})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, place), reply.text
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "x" * 3000, "tool_calls": []}]
        padding = "y" * 200 if size == 10 else " " * size
        body = json.dumps({**CHAT, "messages": messages, "user": padding[:200]})
        taken = await http.post(
            "/v1/chat/completions",
            content=body + padding.replace("y", " "),
            headers={"content-type": "application/json"},
        )

    assert taken.status_code == 200, taken.text
    prompt = bytes(served.units[0].requests[0].prompt_token_ids).decode()
    assert prompt == "<user>ab\n<assistant>" + "x" * 3000 + "\n<assistant>"


async def test_cors__origin_of_the_option__may_read_answers_and_their_headers() -> None:
    app = create_app(Gateway(), cors_origins=("https://chat.example.org",))
    headers = {"origin": "https://chat.example.org"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        preflight = await http.options("/v1/chat/completions", headers=headers | asked)
        known = await http.get("/health", headers=headers)
        stranger = await http.get("/health", headers={"origin": "https://elsewhere.example.org"})

    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    assert known.headers["access-control-allow-origin"] == "https://chat.example.org"
    assert "x-request-id" in known.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize(
    ("asks", "param"),
    [
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": True, "messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ({"continue_final_message": True, "response_format": {"type": "json_object"}}, "response_format"),
        ({"continue_final_message": True}, None),
        ({"continue_final_message": True, "add_generation_prompt": False}, None),
    ],
)
async def test_continue_final_message__chat__prompt_ends_in_it_or_the_error_names_what_excludes_it(
    http, asks: dict, param: str | None
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is"}]
    reply = await http.post("/v1/chat/completions", json={**CHAT, "messages": messages, **asks})

    if param is not None:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    else:
        assert bytes(http.served.units[0].requests[-1].prompt_token_ids).decode() == "<user>hi\n<assistant>It is"
