"""Units for prompts hand over to units for decode: the client sees every token once, whoever is lost."""

import re

import httpx
import pytest
from fake_unit import SPEECH, FakeUnit
from fleet_values import ask as asked_for
from fleet_values import fleet, unit

from pdmux_actor.lease import ModelPhase
from placement.unit_role import UnitRole
from router.admission.block_ledger import block_budgets
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits

MODEL = "demo/bytes"
PATIENT = GatewayLimits(hold_s=20)


def ask(**changes) -> dict:
    return {"model": MODEL, "prompt": "x", "max_tokens": 60, "temperature": 0, "logprobs": 0, **changes}


def for_prompts(name: str = "prompts", **options) -> FakeUnit:
    return FakeUnit(unit_id=name, role=UnitRole.PREFILL, **options)


def for_decode(name: str = "decode", **options) -> FakeUnit:
    return FakeUnit(unit_id=name, role=UnitRole.DECODE, **options)


async def complete(served, **changes) -> dict:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(**changes))
    assert reply.status_code == 200, reply.text
    return reply.json()


async def metric(served, name: str) -> float:
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        text = (await http.get("/metrics")).text
    found = re.search(rf'^{name}\{{.*model="{MODEL}".*\}} (\S+)$', text, flags=re.MULTILINE)
    assert found is not None, text
    return float(found[1])


def said(reply: dict) -> tuple[str, str, int]:
    (choice,) = reply["choices"]
    assert len(choice["logprobs"]["tokens"]) == reply["usage"]["completion_tokens"]
    return choice["text"], choice["finish_reason"], reply["usage"]["completion_tokens"]


WHOLE = (SPEECH.encode()[:60].decode(errors="replace"), "length", 60)


async def test_request__prompt_on_one_unit_rest_on_the_other__with_where_the_kv_is(serve) -> None:
    prompts, decode = for_prompts(), for_decode()
    served = await serve(prompts, decode, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    (first,), (rest,) = prompts.requests, decode.requests
    assert (first.hands_over, first.sampling.max_tokens, first.kv_from) == (True, 1, "")
    assert (rest.hands_over, rest.sampling.max_tokens, rest.kv_from) == (False, 60, prompts.endpoint)
    assert (len(first.output_token_ids), len(rest.output_token_ids)) == (0, 1)
    assert first.request_id != rest.request_id
    assert await metric(served, "muxfleet_kv_transfers_total") == 1
    assert await metric(served, "muxfleet_kv_transfers_short_total") == 0
    assert await metric(served, "muxfleet_kv_transfer_bytes_total") == 1000
    assert await metric(served, "muxfleet_kv_transfer_seconds_sum") == pytest.approx(0.1)
    assert await metric(served, "muxfleet_generation_continuations_total") == 0


async def test_request__first_token_is_half_a_character__is_said_once_and_whole(serve) -> None:
    half = {"says": lambda _: "ü" * 8}
    prompts, decode = for_prompts(cached_tokens=1, **half), for_decode(cached_tokens=7, **half)
    served = await serve(prompts, decode, limits=PATIENT)

    reply = await complete(served)

    assert said(reply) == ("ü" * 8, "stop", 16)
    assert decode.requests[0].output_token_ids == ()
    assert decode.requests[0].kv_from == prompts.endpoint
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 1  # not what was sent there


async def test_request__stop_string_begins_in_the_first_token__is_found_across_units(serve) -> None:
    prompts, decode = for_prompts(), for_decode()
    served = await serve(prompts, decode, limits=PATIENT)

    reply = await complete(served, stop="Gr")

    assert said(reply)[:2] == ("", "stop")


@pytest.mark.parametrize("changes", [{"max_tokens": 1}, {"max_tokens": 0, "echo": True}], ids=str)
async def test_request__of_one_token__ends_on_the_unit_for_prompts(serve, changes) -> None:
    prompts, decode = for_prompts(), for_decode()
    served = await serve(prompts, decode, limits=PATIENT)

    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(**changes))

    assert reply.status_code == 200
    assert len(prompts.requests) == 1
    assert not prompts.requests[0].hands_over
    assert not decode.requests


async def test_decode_unit__dies__another_fetches_the_kv_anew(serve) -> None:
    fuse = [10]
    prompts = for_prompts()
    decodes = [for_decode(name, fuse=fuse) for name in ("decode-a", "decode-b")]
    served = await serve(prompts, *decodes, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    asked = [r for u in decodes for r in u.requests]
    assert sorted(len(r.output_token_ids) for r in asked) == [1, 10]
    assert {r.kv_from for r in asked} == {prompts.endpoint}
    assert await metric(served, "muxfleet_generation_continuations_total") == 1


async def test_decode_unit__only_one_and_it_dies__unit_for_prompts_goes_on_by_itself(serve) -> None:
    prompts, decode = for_prompts(), for_decode(fuse=[10, 10, 10])
    served = await serve(prompts, decode, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    last = prompts.requests[-1]
    assert (last.hands_over, last.kv_from, len(last.output_token_ids)) == (False, "", 10)


async def test_prefill_unit__dies_before_its_token__another_hands_over(serve) -> None:
    fuse = [0]
    prompts = [for_prompts(name, fuse=fuse) for name in ("prompts-a", "prompts-b")]
    decode = for_decode()
    served = await serve(*prompts, decode, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    assert [len(u.requests) for u in prompts] == [1, 1]
    (rest,) = decode.requests
    (survivor,) = [u for u in prompts if u.endpoint == rest.kv_from]
    assert survivor.requests[0].hands_over


async def test_prefill_unit__none_is_left__unit_for_decode_does_all(serve) -> None:
    decode = for_decode()
    served = await serve(decode, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    (request,) = decode.requests
    assert (request.hands_over, request.kv_from, request.sampling.max_tokens) == (False, "", 60)


async def test_decode_unit__none_is_there__unit_for_prompts_does_all(serve) -> None:
    prompts = for_prompts()
    served = await serve(prompts, limits=PATIENT)

    assert said(await complete(served)) == WHOLE

    assert not prompts.requests[0].hands_over


def test_routing__roles__are_a_preference_of_each_part() -> None:
    scheduler = GatewayScheduler(gateway_id="g")
    both, prompts = unit("both"), unit("prompts", role=UnitRole.PREFILL)
    decode = unit("decode", role=UnitRole.DECODE)
    scheduler.update_view(fleet(decode, prompts), 0.0)
    scheduler.offer(asked_for("r"), 0.0)

    chosen = scheduler.route("r", 0.0)
    assert chosen is not None
    assert (chosen.unit_id, chosen.hands_over) == ("prompts", True)
    goes_on = scheduler.route("r", 0.0, is_prefilled=True)
    assert goes_on is not None
    assert (goes_on.unit_id, goes_on.hands_over) == ("decode", False)

    scheduler.update_view(fleet(both, prompts), 0.0)
    back = scheduler.route("r", 0.0, is_prefilled=True)
    assert back is not None
    assert back.unit_id == "both"

    scheduler.update_view(fleet(unit("decode", role=UnitRole.DECODE, phase=ModelPhase.LOADING), prompts), 0.0)
    alone = scheduler.route("r", 0.0)
    assert alone is not None
    assert (alone.unit_id, alone.hands_over) == ("prompts", False)


def test_ledger__units_for_prompts__count_only_where_no_other_has_the_model() -> None:
    prompts = unit("prompts", role=UnitRole.PREFILL, total_blocks=0)
    decode = unit("decode", role=UnitRole.DECODE, total_blocks=0)

    assert block_budgets(fleet(prompts, decode))["m"].blocks == 1000
    assert block_budgets(fleet(prompts))["m"].blocks == 1000
    assert block_budgets(fleet(unit("a", total_blocks=0), unit("b", total_blocks=0)))["m"].blocks == 2000
