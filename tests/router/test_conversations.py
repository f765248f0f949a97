"""Conversations that gateways keep, and what a response went by, through OpenAI's own SDK."""

import httpx
import msgspec
import openai
import pytest
from fake_unit import FakeUnit

from router.errors import ConversationNotFound, GatewaysSilent
from router.responses.conversation import Conversation
from router.responses.conversations import Conversations
from router.responses.input_items import InputItem
from router.responses.listed_items import with_new_ids
from router.responses.response_store import ResponseStore
from router.responses.schemas import ConversationSchema, ItemList
from router.responses.told_copies import newest

BODY = {"model": "demo/bytes", "max_output_tokens": 4}


@pytest.fixture
async def sdk(serve):
    unit = FakeUnit()
    served = await serve(unit)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        client.unit = unit
        yield client


def prompt_of(sdk: openai.AsyncOpenAI) -> str:
    return bytes(sdk.unit.requests[-1].prompt_token_ids).decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_conversation__turns_of_it__add_to_it_and_go_on_from_it(sdk, stream) -> None:
    made = await sdk.conversations.create(
        metadata={"topic": "rain"}, items=[{"type": "message", "role": "system", "content": "Be brief."}]
    )
    answers = []
    for text, conversation in (("one", made.id), ("two", {"id": made.id})):
        reply = await sdk.responses.create(**BODY, input=text, conversation=conversation, stream=stream, store=False)
        answers.append([event async for event in reply][-1].response if stream else reply)
    said = answers[0].output_text
    kept = [item async for item in sdk.conversations.items.list(made.id, order="asc", limit=2)]

    assert prompt_of(sdk) == f"<system>Be brief.\n<user>one\n<assistant>{said}\n<user>two\n<assistant>"
    assert [answer.conversation.id for answer in answers] == [made.id] * 2
    assert [(item.role, item.content[0].text) for item in kept] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", said),
        ("user", "two"),
        ("assistant", answers[1].output_text),
    ]
    assert [kept[2].id, kept[4].id] == [answer.output[0].id for answer in answers]
    newest_item = await sdk.conversations.items.list(made.id, limit=1)
    assert [item.id for item in newest_item.data] == [kept[4].id]


async def test_conversation__its_items_and_metadata__are_added_read_changed_and_deleted(sdk) -> None:
    made = await sdk.conversations.create()
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    added = await sdk.conversations.items.create(
        made.id,
        items=[
            {"role": "user", "content": [{"type": "input_text", "text": "Rome?"}]},
            {"type": "reasoning", "id": "rs_x", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            call,
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "+x"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "ok"}]},
        ],
    )
    ids = [item.id for item in added.data]
    read = await sdk.conversations.items.retrieve(ids[2], conversation_id=made.id)
    left = await sdk.conversations.items.delete(ids[1], conversation_id=made.id)
    changed = await sdk.conversations.update(made.id, metadata={"a": "b"})
    listed = await sdk.conversations.items.list(made.id, limit=100)

    assert read.model_dump(include=set(call)) == call
    assert (left.id, changed.metadata) == (made.id, {"a": "b"})
    assert [item.id for item in listed.data] == [ids[5], ids[4], ids[3], ids[2], ids[0]]
    assert ItemList.model_validate(listed.model_dump()).has_more is False
    assert ConversationSchema.model_validate((await sdk.conversations.retrieve(made.id)).model_dump()) is not None

    assert (await sdk.conversations.delete(made.id)).deleted
    for gone in (
        sdk.conversations.retrieve(made.id),
        sdk.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}]),
        sdk.responses.create(**BODY, input="x", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError, match="No conversation") as missing:
            await gone
        assert missing.value.code == "conversation_not_found"


async def test_response__nothing_but_what_was_said_before__is_answered(sdk) -> None:
    made = await sdk.conversations.create(items=[{"role": "user", "content": "one"}])
    first = await sdk.responses.create(**BODY, conversation=made.id)
    again = await sdk.responses.create(**BODY, previous_response_id=first.id, input=[])
    kept = [item.role async for item in sdk.conversations.items.list(made.id, order="asc")]

    assert bytes(sdk.unit.requests[0].prompt_token_ids) == b"<user>one\n<assistant>"
    assert prompt_of(sdk) == f"<user>one\n<assistant>{first.output_text}\n<assistant>"
    assert again.status == "incomplete"
    assert kept == ["user", "assistant"]
    empty = await sdk.conversations.create()
    for asked in ({"conversation": empty.id, "instructions": "Be brief."}, {}, {"input": ""}):
        with pytest.raises(openai.BadRequestError) as bad:
            await sdk.responses.create(**BODY, **asked)
        assert bad.value.param == "input"


async def test_conversation__what_is_no_conversation_item_or_turn_of_one__is_refused(sdk) -> None:
    made = await sdk.conversations.create()
    answer = await sdk.responses.create(**BODY, input="x")
    refused = {
        "conversation": sdk.responses.create(**BODY, input="x", conversation=made.id, previous_response_id=answer.id),
        "items[0].type": sdk.conversations.create(items=[{"type": "compaction", "id": "x"}]),
        "previous_response_id": sdk.responses.create(**BODY, input="x", previous_response_id=made.id),
        "item": sdk.conversations.create(extra_body={"item": []}),
        "order": sdk.conversations.items.list(made.id, order="up"),
    }
    for param, call in refused.items():
        with pytest.raises(openai.BadRequestError) as bad:
            await call
        assert bad.value.param == param
    for missing in (
        sdk.conversations.items.retrieve("msg_x", conversation_id=made.id),
        sdk.conversations.retrieve(answer.id),
        sdk.responses.retrieve(made.id),
        sdk.conversations.create(items=[{"type": "item_reference", "id": "msg_x"}]),
    ):
        with pytest.raises(openai.NotFoundError):
            await missing


async def test_conversation__of_another_key__is_not_there(serve) -> None:
    served = await serve(FakeUnit())
    ann, bob = served.headers_of_keys("ann", "bob")
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        path = "/v1/conversations/" + (await http.post("/v1/conversations", json={}, headers=ann)).json()["id"]
        replies = [await http.get(path, headers=who) for who in ({}, bob, ann)]
        replies.append(await http.delete(path, headers=bob))

    assert [reply.status_code for reply in replies] == [401, 404, 200, 404]


async def test_response__input_items__are_all_that_it_went_by(sdk) -> None:
    first = await sdk.responses.create(
        **BODY,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "one"},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        ],
    )
    second = await sdk.responses.create(**BODY, input="two", previous_response_id=first.id)
    items = [item async for item in sdk.responses.input_items.list(second.id, order="asc", limit=2)]
    again = await sdk.responses.input_items.list(second.id, limit=1)

    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message", "message"]
    assert [items[n].content[0].text for n in (0, 3, 4)] == ["one", first.output_text, "two"]
    assert [item.id for item in again.data] == [items[-1].id]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.input_items.list("resp_x")


async def test_conversation__changed_at_another_gateway__goes_on_from_there() -> None:
    stores: list[ResponseStore] = []

    async def ask(kept_id: str, owner: str) -> bytes | None:
        return newest([copy for store in stores if (copy := store.encoded(kept_id, owner)) is not None])

    stores += [ResponseStore(ask) for _ in range(2)]
    one, other = (Conversations(store, "me") for store in stores)
    made = await one.create([], {})
    for number, gateway in enumerate((other, one, other, one)):
        await gateway.add(made.id, [InputItem(content=str(number))])

    assert [m.text for m in (await other.read(made.id)).messages()] == ["0", "1", "2", "3"]


async def test_conversation__two_turns_at_two_gateways_at_once__both_are_kept_in_one_order() -> None:
    stores: list[ResponseStore] = []

    async def ask(kept_id: str, owner: str) -> bytes | None:
        return newest([copy for store in stores if (copy := store.encoded(kept_id, owner)) is not None])

    stores += [ResponseStore(ask) for _ in range(3)]
    one, other, third = (Conversations(store, "me") for store in stores)
    made = await one.create([InputItem(content="0"), InputItem(content="x")], {})
    for conversations in (other, third):
        await conversations.read(made.id)
    for conversations, text in ((one, "a"), (other, "b")):  # both have read it before
        conversations.append(made.id, with_new_ids([InputItem(content=text), InputItem(content=f"{text}!")]))
    removing = msgspec.json.decode(stores[2].here(made.id, "me"), type=Conversation)
    removing.remove(removing.items[1]["id"])
    removing.set_metadata({"topic": "rain"})
    third.keep(removing)
    asked = [m.text for m in (await third.read(made.id)).messages()]
    pages = [store.fresh_copies()[1] for store in stores]
    for store in stores:
        for copy in (copy for page in reversed(pages) for copy in page):
            store.take(copy)
    told = [msgspec.json.decode(store.here(made.id, "me"), type=Conversation) for store in stores]

    assert asked == ["0", "a", "a!", "b", "b!"]
    assert [[m.text for m in each.messages()] for each in told] == [asked] * 3
    assert [each.metadata for each in told] == [{"topic": "rain"}] * 3
    await other.add(made.id, [InputItem(content="c")])
    assert [m.text for m in (await one.read(made.id)).messages()] == [*asked, "c"]


async def test_conversation__changed_or_deleted_while_others_are_told__they_are_told_again() -> None:
    here, there = ResponseStore(), ResponseStore()
    conversations = Conversations(here, "me")
    made = await conversations.create([], {})
    for change in (conversations.add(made.id, [InputItem(content="x")]), conversations.delete(made.id)):
        told, page = here.fresh_copies()
        await change
        here.were_told(told)
        for copy in page:
            there.take(copy)
        assert here.fresh_copies()[1]
    for copy in here.fresh_copies()[1]:
        there.take(copy)

    with pytest.raises(ConversationNotFound):
        await Conversations(there, "me").read(made.id)


async def test_conversation__other_gateways_are_silent__goes_on_where_it_is_known() -> None:
    async def silent(kept_id: str, owner: str) -> bytes | None:
        raise GatewaysSilent(response_id=kept_id, retry_after_s=1)

    store = ResponseStore(silent)
    conversations = Conversations(store, "me")
    made = await conversations.create([], {})

    assert (await conversations.read(made.id)).id == made.id
    with pytest.raises(GatewaysSilent):
        await conversations.read("conv_x")
