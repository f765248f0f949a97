"""A unit dies under a request: the client sees every token once."""

import asyncio
import json
import time
from dataclasses import replace

import httpx
import pytest
from fake_unit import GIVEN_BACK, SPEECH, FakeUnit, eventually, fleet_view, speech_tokens

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Delta
from router.limits import GatewayLimits
from router.transport import frame_connection

MODEL = "demo/bytes"
PATIENT = GatewayLimits(hold_s=20)


def ask(**changes) -> dict:
    return {"model": MODEL, "prompt": "x", "max_tokens": 60, "temperature": 0, "logprobs": 0, **changes}


def streamed(reply: httpx.Response) -> list[dict]:
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# Token 3 is the first byte of "ü": at 3 its half is held back when the unit dies; at 0 nothing was sent yet.
@pytest.mark.parametrize("fuse", [[0], [1], [3], [4], [5], [28], [56], [3, 28]], ids=str)
@pytest.mark.parametrize("tokens_per_delta", [1, 4])
async def test_stream__unit_dies__goes_on_elsewhere_without_gap_or_repeat(serve, fuse, tokens_per_delta) -> None:
    deaths = len(fuse)
    shared = list(fuse)
    units = [FakeUnit(unit_id=f"unit-{i}", fuse=shared, tokens_per_delta=tokens_per_delta) for i in range(3)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(stream=True))

    chunks = streamed(reply)
    tokens = [b for c in chunks for b in c["choices"][0]["logprobs"]["tokens"]]
    assert "".join(c["choices"][0]["text"] for c in chunks) == SPEECH.encode()[:60].decode(errors="replace")
    assert len(tokens) == 60
    assert [c["choices"][0]["finish_reason"] for c in chunks].count("length") == 1
    asked = [r for u in units for r in u.requests]
    assert len({r.request_id for r in asked}) == len(asked) == 1 + deaths
    assert {r.request_id.rpartition(".")[0] for r in asked} == {asked[0].request_id.rpartition(".")[0]}
    assert all(len(u.requests) <= 1 for u in units)


async def test_stream__stop_string_spans_the_cut__still_stops(serve) -> None:
    # "Küche" starts at token 16; the unit dies when its first letters are held back.
    fuse = [18]
    units = [FakeUnit(unit_id="unit-a", fuse=fuse), FakeUnit(unit_id="unit-b", fuse=fuse)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(stop="Küche"))

    choice = reply.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Grüße aus der ", "stop")
    continued = [r for u in units for r in u.requests if r.output_token_ids]
    assert continued[0].output_token_ids == tuple(SPEECH.encode()[:16])


async def test_stream__sampled__continuation_keeps_the_seed(serve) -> None:
    fuse = [10]
    units = [FakeUnit(unit_id="unit-a", fuse=fuse), FakeUnit(unit_id="unit-b", fuse=fuse)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(temperature=1.0))

    asked = [r for u in units for r in u.requests]
    assert len(asked) == 2
    assert len({r.sampling.seed for r in asked}) == 1
    assert reply.json()["choices"][0]["text"] == bytes(speech_tokens(asked[0])[:60]).decode(errors="replace")


async def test_usage__cached_tokens__are_those_that_the_first_unit_found(serve) -> None:
    fuse = [10]
    units = [FakeUnit(unit_id=name, fuse=fuse, cached_tokens=3) for name in ("unit-a", "unit-b")]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(prompt="more than six tokens"))

    assert sum(len(u.requests) for u in units) == 2
    assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_usage__several_choices__cached_tokens_are_those_of_the_prompt_once(serve) -> None:
    served = await serve(FakeUnit(cached_tokens=3))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(prompt="more than six tokens", max_tokens=2, n=3))

    assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("fuse", [[], [1]], ids=str)
async def test_usage__first_token_is_held_back__cached_tokens_are_told_with_it(serve, fuse) -> None:
    half = {"says": lambda _: "ü" * 8, "cached_tokens": 1, "fuse": fuse}  # a token is half a character
    served = await serve(FakeUnit(unit_id="unit-a", **half), FakeUnit(unit_id="unit-b", **half), limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask())

    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 1


async def test_only_unit__dies_and_comes_back__request_waits_for_it(serve) -> None:
    unit = FakeUnit(fuse=[10])
    served = await serve(unit, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask()))
        await eventually(lambda: not unit.fuse)
        served.show()
        reborn = FakeUnit(unit_id="unit-a2")
        async with reborn:
            served.show(reborn)
            reply = await asking

    assert reply.json()["usage"]["completion_tokens"] == 60
    assert len(reborn.requests[0].output_token_ids) == 10


@pytest.mark.parametrize("stream", [False, True])
async def test_only_unit__comes_back_with_other_weights__answer_ends_with_an_error_and_is_no_mixture(
    serve, stream
) -> None:
    unit = FakeUnit(fuse=[10])
    served = await serve(unit, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask(stream=stream)))
        await eventually(lambda: not unit.fuse)
        served.show()
        async with FakeUnit(unit_id="unit-a2") as reborn:
            served.show(reborn, weights=("./other", None, None, None))
            reply = await asking
            again = await http.post("/v1/completions", json=ask())

    last = json.loads(reply.text.rsplit("data: ", 1)[1]) if stream else reply.json()
    error = last["error"]
    assert (reply.status_code, error["code"]) == (200 if stream else 503, "weights_changed")
    assert "was given other weights" in error["message"]
    assert (again.status_code, len(reborn.requests)) == (200, 1)


async def test_only_unit__comes_back_with_other_weights_before_the_first_token__answers_by_them(serve) -> None:
    unit = FakeUnit(fuse=[0])
    served = await serve(unit, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask()))
        await eventually(lambda: not unit.fuse)
        served.show()
        async with FakeUnit(unit_id="unit-a2") as reborn:
            served.show(reborn, weights=("./other", None, None, None))
            reply = await asking

    assert reply.json()["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize(("max_model_len", "output_tokens"), [(11, 10), (20, 60)])
async def test_no_max_tokens__units_take_less_than_they_did__ends_where_they_do(
    serve, max_model_len, output_tokens
) -> None:
    """The fake unit says as much as it is asked for, whatever it takes."""
    unit = FakeUnit(fuse=[10], max_model_len=61)
    served = await serve(unit, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask(max_tokens=None)))
        await eventually(lambda: not unit.fuse)
        async with FakeUnit(unit_id="unit-a2", max_model_len=max_model_len) as reborn:
            served.show(reborn)
            reply = (await asking).json()

    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == output_tokens
    assert len(reborn.requests) == (output_tokens > 10)


async def test_unit__stalls__its_streams_go_on_elsewhere_without_gap_or_repeat(serve) -> None:
    units = [FakeUnit(unit_id="unit-a", token_gap_s=0.01), FakeUnit(unit_id="unit-b", token_gap_s=0.01)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask(stream=True)))
        await eventually(lambda: units[0].requests or units[1].requests)
        stalled, other = units if units[0].requests else reversed(units)
        stalled.stalled = True
        reply = await asking

    text = "".join(c["choices"][0]["text"] for c in streamed(reply))
    assert text == SPEECH.encode()[:60].decode(errors="replace")
    assert len(other.requests) == 1
    assert stalled.cancelled == [stalled.requests[0].request_id]


async def test_only_unit__stalls__stream_stays_and_goes_on_when_the_unit_does(serve) -> None:
    unit = FakeUnit(token_gap_s=0.01)
    served = await serve(unit, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask()))
        await eventually(lambda: unit.requests)
        unit.stalled = True
        await eventually(lambda: unit.endpoint in served.gateway._pool.unreachable())
        unit.stalled = False
        reply = await asking

    assert reply.json()["usage"]["completion_tokens"] == 60
    assert len(unit.requests) == 1
    assert not unit.cancelled


async def test_model__leaves_the_unit__retryable_error_moves_on(serve) -> None:
    units = [FakeUnit(unit_id="a"), FakeUnit(unit_id="b")]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        units[0].fail = units[1].fail = lambda request: GIVEN_BACK if request.request_id.endswith(".0") else None
        reply = await http.post("/v1/completions", json=ask())

    assert reply.status_code == 200
    assert sorted(len(u.requests) for u in units) == [1, 1]


async def test_stream__model_leaves_more_often_than_units_may_be_lost__comes_to_its_end(serve) -> None:
    turns = [5, 10, 20, 30, 40]
    served = await serve(*(FakeUnit(unit_id=f"unit-{i}", lets_go=turns) for i in range(6)), limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask())

    assert (reply.status_code, turns) == (200, [])
    assert reply.json()["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize(("can_wake", "tokens", "status"), [(True, 10, 200), (True, 0, 503), (False, 10, 503)])
async def test_answer__its_model_comes_back_after_hold_s__is_lost_only_if_it_had_not_begun_or_takes_no_turns(
    serve, can_wake, tokens, status
) -> None:
    unit = FakeUnit(lets_go=[tokens])
    served = await serve(unit, limits=GatewayLimits(hold_s=1.5))
    view = fleet_view(unit, source=served.folder)
    view = replace(view, models=tuple(replace(card, can_wake=can_wake) for card in view.models))
    served.gateway.update_view(view)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask()))
        await eventually(lambda: not unit.lets_go)
        served.gateway.update_view(replace(view, units=()))
        await asyncio.sleep(3.0)
        served.gateway.update_view(view)
        reply = await asking

    assert reply.status_code == status


async def test_units__all_die__502_before_and_event_after_the_first_byte(serve) -> None:
    units = [FakeUnit(unit_id=f"unit-{i}", fuse=[i * 5]) for i in range(2)]
    served = await serve(*units, limits=GatewayLimits(max_attempts=1))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        served.show(units[0])
        early = await http.post("/v1/completions", json=ask(stream=True))
        served.show(units[1])
        late = await http.post("/v1/completions", json=ask(stream=True))

    assert early.status_code == 502
    assert early.json()["error"]["code"] == "unit_lost"
    assert late.status_code == 200
    events = [line[6:] for line in late.text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "unit_lost"
    assert "[DONE]" not in late.text


async def test_metrics__after_a_continuation__tell_it(serve) -> None:
    fuse = [10]
    units = [FakeUnit(unit_id="unit-a", fuse=fuse), FakeUnit(unit_id="unit-b", fuse=fuse)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        await http.post("/v1/completions", json=ask())
        text = (await http.get("/metrics")).text

    assert 'muxfleet_generation_continuations_total{model="demo/bytes"} 1.0' in text
    assert 'muxfleet_generation_tokens_total{model="demo/bytes"} 60.0' in text
    assert 'muxfleet_answers_total{model="demo/bytes"} 1.0' in text
    assert 'muxfleet_generations_in_flight{model="demo/bytes"} 0.0' in text
    assert 'muxfleet_requests_total{endpoint="/v1/completions",model="demo/bytes",status="200"} 1.0' in text


async def test_request__two_units_die_under_it_without_a_token__is_not_tried_on_a_third(serve) -> None:
    units = [FakeUnit(unit_id=f"unit-{i}", poison=13) for i in range(3)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask(prompt=[13, 1, 2]))
        other = await http.post("/v1/completions", json=ask())

    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "request_killed_units")
    assert reply.headers["x-should-retry"] == "false"
    assert [r.prompt_token_ids[0] for u in units for r in u.requests].count(13) == 2
    assert other.status_code == 200, "there is a unit left"


async def test_request__gateway_itself_stands_again_and_again__units_are_not_called_killed(serve, monkeypatch) -> None:
    monkeypatch.setattr(frame_connection, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(frame_connection, "SILENCE_S", 0.4)
    units = [FakeUnit(unit_id=f"unit-{i}", token_gap_s=600) for i in range(2)]
    served = await serve(*units, limits=replace(PATIENT, avoid_s=0.1))
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=ask()))
        for times in range(1, 5):
            await eventually(lambda: sum(len(u.requests) for u in units) == times)  # noqa: B023 - awaited at once
            time.sleep(0.5)  # noqa: ASYNC251 - it is the loop that is to stand still
            for unit in units:
                unit.token_gap_s = 0.0 if times == 4 else 600
                unit.drop_connections()
        reply = await asking

    assert reply.status_code == 200, reply.text


async def test_request__units_give_it_back__is_not_called_their_killer(serve) -> None:
    units = [FakeUnit(unit_id=f"unit-{i}") for i in range(3)]
    for unit in units:
        unit.fail = lambda request: GIVEN_BACK if request.request_id.endswith((".0", ".1")) else None
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask())

    assert reply.status_code == 200


async def test_request__engines_die_under_it__counts_as_a_death(serve) -> None:
    died = Delta(
        stream=0,
        sequence=0,
        text="",
        token_ids=[],
        finish=FinishReason.ERROR,
        error="died",
        retryable=True,
        engine_died=True,
    )
    units = [FakeUnit(unit_id=f"unit-{i}", fail=lambda request: died) for i in range(3)]
    served = await serve(*units, limits=PATIENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        reply = await http.post("/v1/completions", json=ask())

    assert reply.json()["error"]["code"] == "request_killed_units"
    assert sum(len(u.requests) for u in units) == 2
