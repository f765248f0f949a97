"""/tokenize and /detokenize answer with the tokens that the model's requests have."""

import json

import httpx
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer

from router.access.api_keys import KeyEntry, KeyRing, make_key
from router.openai.body import SMALL_BODY_BYTES

MODEL = "demo/bytes"
MESSAGES = [{"role": "user", "content": "hi"}]


async def post(served, path: str, **body):
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        return await client.post(path, json={"model": MODEL, **body})


async def test_tokenize__prompt__is_what_a_completion_of_it_has(serve) -> None:
    served = await serve(unit := FakeUnit())
    told = (await post(served, "/tokenize", prompt="aü")).json()
    await post(served, "/v1/completions", prompt="aü", max_tokens=1)

    ids = list("aü".encode())
    assert told == {"count": 3, "max_model_len": 4096, "tokens": ids, "token_strs": None}
    assert unit.requests[0].prompt_token_ids == tuple(ids)


async def test_tokenize__token_strs__are_the_vocabularys(serve) -> None:
    told = (await post(await serve(FakeUnit()), "/tokenize", prompt="a ü", return_token_strs=True)).json()
    assert told["token_strs"] == ["a", "Ġ", "Ã", "¼"]


@pytest.mark.parametrize("prompts_for_an_answer", [True, False])
async def test_tokenize__messages__are_what_the_chat_has(serve, prompts_for_an_answer: bool) -> None:
    served = await serve(unit := FakeUnit())
    told = (await post(served, "/tokenize", messages=MESSAGES, add_generation_prompt=prompts_for_an_answer)).json()
    await post(served, "/v1/chat/completions", messages=MESSAGES, max_tokens=1)

    text = bytes(unit.requests[0].prompt_token_ids)
    assert bytes(told["tokens"]) == (text if prompts_for_an_answer else text.removesuffix(b"<assistant>"))


async def test_tokenize__tools__are_those_of_the_chat_each_with_its_name_first(serve, tmp_path) -> None:
    served = await serve(unit := FakeUnit())
    served.folder = write_byte_tokenizer(tmp_path, chat_template="{{ tools | tojson }}")
    served.show(unit)
    function = {"description": "Now", "parameters": {"type": "object"}, "name": "time", "strict": False}
    tools = [{"type": "function", "function": f} for f in (function, {"name": "a"}, {"parameters": {}, "name": "b"})]
    told = (await post(served, "/tokenize", messages=MESSAGES, tools=tools)).json()
    await post(served, "/v1/chat/completions", messages=MESSAGES, tools=tools, max_tokens=1)

    text = bytes(unit.requests[0].prompt_token_ids)
    assert bytes(told["tokens"]) == text
    nothing = {"type": "object", "properties": {}}
    assert [list(tool["function"].items()) for tool in json.loads(text)] == [
        [("name", "time"), ("description", "Now"), ("parameters", {"type": "object"})],
        [("name", "a"), ("parameters", nothing)],
        [("name", "b"), ("parameters", nothing)],
    ]


async def test_tokenize__a_last_message_to_go_on_from__is_what_the_chat_has(serve) -> None:
    served = await serve(unit := FakeUnit())
    going_on = {"messages": [*MESSAGES, {"role": "assistant", "content": "Well"}], "continue_final_message": True}
    told = (await post(served, "/tokenize", **going_on, add_generation_prompt=False)).json()
    await post(served, "/v1/chat/completions", **going_on, max_tokens=1)
    assert tuple(told["tokens"]) == unit.requests[0].prompt_token_ids


async def test_detokenize__special_tokens__are_in_the_text(serve) -> None:
    served = await serve(FakeUnit())
    assert (await post(served, "/detokenize", tokens=[104, 105, 256])).json() == {"prompt": "hi<eos>"}
    assert (await post(served, "/detokenize", tokens=[])).json() == {"prompt": ""}


async def test_tokenize__large_bodies__are_read_all_the_same(serve) -> None:
    served = await serve(FakeUnit())
    text = "x" * (2 * SMALL_BODY_BYTES)
    assert (await post(served, "/tokenize", prompt=text)).json()["count"] == len(text)
    assert (await post(served, "/detokenize", tokens=[120] * len(text))).json()["prompt"] == text
    refused = await post(served, "/tokenize", prompt=["x" * SMALL_BODY_BYTES, "y" * SMALL_BODY_BYTES])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": 7}, 400, "prompt"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, 400, "messages"),
        (
            "/tokenize",
            {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True},
            400,
            "add_generation_prompt",
        ),
        ("/tokenize", {"prompt": "x", "add_special_token": True}, 400, "add_special_token"),
        ("/tokenize", {"prompt": "x", "model": "none"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [257]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "none"}, 404, "model"),
    ],
)
async def test_bodies__that_are_wrong__name_the_place(serve, path, body, status, param) -> None:
    reply = await post(await serve(FakeUnit()), path, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_keys__are_asked_for_and_their_rates_hold(serve, path, body) -> None:
    served, key = await serve(FakeUnit()), make_key()
    entry = KeyEntry(key_id=key.key_id, name="k", hash=key.hash, models=frozenset({MODEL}), requests_per_minute=1)
    served.gateway.access.set_keys(KeyRing([entry]))
    headers = {"authorization": f"Bearer {key.secret}"}

    assert (await post(served, path, **body)).status_code == 401
    async with httpx.AsyncClient(base_url=served.url, timeout=60, headers=headers) as client:
        replies = [await client.post(path, json={"model": model, **body}) for model in ("other", MODEL, MODEL)]
    assert [reply.status_code for reply in replies] == [403, 200, 429]
