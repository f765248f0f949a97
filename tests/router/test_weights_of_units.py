"""A model is given other weights with another tokenizer: no unit computes what was made for others than it has."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import pytest
from fake_unit import FakeUnit, eventually, write_byte_tokenizer

from pdmux_actor.lease import ModelPhase, WeightsOrigin
from placement.unit_role import UnitRole
from router.limits import GatewayLimits

MODEL = "demo/bytes"
PATIENT = GatewayLimits(hold_s=20)
TEXT = "which of them"


@pytest.fixture(scope="session")
def newer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("newer"), is_backwards=True)


@pytest.fixture
def old(tokenizer_folder: Path) -> WeightsOrigin:
    return WeightsOrigin(source=str(tokenizer_folder))


@pytest.fixture
def new(newer_folder: Path) -> WeightsOrigin:
    return WeightsOrigin(source=str(newer_folder))


def ask(**changes) -> dict:
    return {"model": MODEL, "prompt": TEXT, "max_tokens": 20, "temperature": 0, **changes}


def prompts_of(unit: FakeUnit) -> set[tuple[int, ...]]:
    return {r.prompt_token_ids for r in unit.requests}


def made_for(origin: WeightsOrigin, new: WeightsOrigin) -> tuple[int, ...]:
    return tuple(255 - b if origin == new else b for b in TEXT.encode())


def wants(served, origin: WeightsOrigin, *units: FakeUnit, **overrides) -> None:
    """The view from now on: the fleet file names these weights."""
    served.folder = Path(origin.source)
    served.show(*units, weights=origin.name(), **overrides)


async def posted(http: httpx.AsyncClient, path: str = "/v1/completions", **changes) -> httpx.Response:
    return await http.post(path, json=ask(**changes))


async def test_units_with_old_and_new_weights__each_gets_prompts_of_its_own_tokenizer(serve, old, new) -> None:
    units = [FakeUnit(unit_id="a", origin=old), FakeUnit(unit_id="b", origin=new), FakeUnit(unit_id="c", origin=old)]
    served = await serve(*units)
    wants(served, new, *units)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        replies = [await posted(http) for _ in range(12)]

    assert [r.status_code for r in replies] == [200] * 12
    # Which of the two with the old weights is faster the gateway learns: it may leave one of them out.
    a, b, c = (prompts_of(u) for u in units)
    assert (a | c, b) == ({made_for(old, new)}, {made_for(new, new)})
    assert sum(u.given_back for u in units) == 0
    by_weights = Counter()
    for unit in units:
        by_weights[unit.origin] += len(unit.requests)
    assert by_weights == {old: 8, new: 4}, "old and new weights have their units' share"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize("stream", [False, True])
async def test_unit_has_changed_before_the_gateway_knows__prompt_is_made_anew(serve, old, new, path, stream) -> None:
    unit = FakeUnit(origin=old)
    served = await serve(unit, limits=PATIENT)
    wants(served, old, unit)
    unit.origin = new  # no view has told yet
    body = {
        "/v1/completions": {"prompt": TEXT, "stream": stream, "max_tokens": 20},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "stream": stream, "max_tokens": 20},
        "/v1/embeddings": {"input": TEXT},
    }[path]
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post(path, json={"model": MODEL, **body}))
        await eventually(lambda: unit.given_back)
        wants(served, new, unit)
        reply = await asking

    assert reply.status_code == 200
    assert "error" not in reply.text
    (prompt,) = prompts_of(unit)
    text = "<user>" + TEXT + "\n<assistant>" if "chat" in path else TEXT
    assert bytes(255 - t for t in prompt).decode() == text


@pytest.mark.parametrize("stream", [False, True])
async def test_request_waits_while_weights_change__prompt_is_made_anew(serve, old, new, stream) -> None:
    unit = FakeUnit(origin=old)
    served = await serve(unit, limits=PATIENT)
    wants(served, old, unit)
    wants(served, old, unit, phase=ModelPhase.LOADING)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(posted(http, stream=stream))
        await eventually(lambda: served.gateway.scheduler.admission.num_waiting(MODEL))
        wants(served, new, unit, phase=ModelPhase.LOADING)
        unit.origin = new
        wants(served, new, unit)
        reply = await asking

    assert reply.status_code == 200
    assert "error" not in reply.text
    assert prompts_of(unit) == {made_for(new, new)}
    assert unit.given_back == 0


async def test_last_unit_with_the_old_weights_goes__what_waits_for_it_is_served_by_the_new(serve, old, new) -> None:
    stays, goes = FakeUnit(unit_id="a", origin=new), FakeUnit(unit_id="b", origin=old)
    served = await serve(stays, goes, limits=PATIENT)
    wants(served, new, stays, goes)
    goes.origin = new  # it gives all back
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = [asyncio.create_task(posted(http)) for _ in range(6)]
        await eventually(lambda: goes.given_back)
        wants(served, new, stays, goes)
        replies = await asyncio.gather(*asking)

    assert [r.status_code for r in replies] == [200] * 6
    assert prompts_of(stays) | prompts_of(goes) == {made_for(new, new)}


async def test_begun_answer__unit_lost__goes_on_with_its_own_weights_only(serve, old, new) -> None:
    fuse = [5]
    first, second = (FakeUnit(unit_id=i, origin=old, fuse=fuse) for i in "ab")
    other = FakeUnit(unit_id="c", origin=new)
    served = await serve(first, second, other, limits=PATIENT)
    wants(served, old, first, second)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(posted(http, stream=True))
        wants(served, new, first, second, other)
        reply = await asking

    assert "error" not in reply.text
    assert not fuse
    assert (len(first.requests), len(second.requests), len(other.requests)) == (1, 1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_begun_answer__last_unit_of_its_weights_lost__ends_with_weights_changed(serve, old, new, stream) -> None:
    first, other = FakeUnit(unit_id="a", origin=old, fuse=[5], token_gap_s=0.02), FakeUnit(unit_id="b", origin=new)
    served = await serve(first, other, limits=PATIENT)
    wants(served, old, first)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(posted(http, stream=stream))
        await eventually(lambda: first.requests)
        wants(served, new, other)
        reply = await asking

    last = json.loads(reply.text.rsplit("data: ", 1)[1]) if stream else reply.json()
    assert last["error"]["code"] == "weights_changed"
    assert not other.requests


async def test_units_for_prefill_and_decode__of_different_weights__nothing_is_handed_over(serve, old, new) -> None:
    prefill = FakeUnit(unit_id="p", origin=old, role=UnitRole.PREFILL)
    decode = FakeUnit(unit_id="d", origin=new, role=UnitRole.DECODE)
    served = await serve(prefill, decode)
    wants(served, new, prefill, decode)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        replies = [await posted(http) for _ in range(4)]

    assert [r.status_code for r in replies] == [200] * 4
    for unit in (prefill, decode):
        assert prompts_of(unit) == {made_for(unit.origin, new)}
        assert [(r.hands_over, r.kv_from) for r in unit.requests] == [(False, "")] * 2


async def test_new_tokenizer_does_not_load__units_with_the_old_weights_serve_on(serve, old, tmp_path) -> None:
    nothing = WeightsOrigin(source=str(tmp_path))
    units = [FakeUnit(unit_id="a", origin=old), FakeUnit(unit_id="b", origin=nothing)]
    served = await serve(*units)
    wants(served, nothing, *units)
    card = served.gateway.card(MODEL)
    await eventually(lambda: served.gateway.lacks_tokenizer(card))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        replies = [await posted(http) for _ in range(4)]

    assert [r.status_code for r in replies] == [200] * 4
    assert [len(u.requests) for u in units] == [4, 0]
