"""Keys, allow-lists, rates, headers and what slow or oversized clients meet, over HTTP."""

import asyncio
import json
import logging
from collections import Counter

import httpx
import pytest
from fake_unit import FakeUnit, eventually
from fleet_values import is_idle
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import Slo
from router.access.api_keys import FreshKey, KeyEntry, KeyRing, make_key
from router.access.rate_limits import RateLimits
from router.errors import InvalidApiKey
from router.limits import GatewayLimits
from router.request_terms import Priority

MODEL = "demo/bytes"
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
OWN = Slo(ttft_s=2.0, tbt_s=0.2)  # of the model


def entry(key: FreshKey, name: str = "team", **changes) -> KeyEntry:
    return KeyEntry(key_id=key.key_id, name=name, hash=key.hash, **changes)


def bearer(key: FreshKey) -> dict[str, str]:
    return {"authorization": f"Bearer {key.secret}"}


@pytest.fixture
async def http(serve):
    served = await serve(FakeUnit())
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        client.gateway = served.gateway
        client.served = served
        yield client


async def test_keys__missing_wrong_or_malformed__401_and_nothing_of_the_key(http) -> None:
    good, other = make_key(), make_key()
    http.gateway.access.set_keys(KeyRing([entry(good)]))
    forged = good.secret[:-3] + ("abc" if not good.secret.endswith("abc") else "xyz")
    for headers in ({}, bearer(other), {"authorization": f"Bearer {forged}"}, {"authorization": "Bearer x"}):
        reply = await http.post("/v1/completions", json=BODY, headers=headers)
        assert reply.status_code == 401
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.json()["error"]["type"] == "authentication_error"
        assert reply.headers["x-should-retry"] == "false"
        assert forged not in reply.text
    assert (await http.get("/v1/models")).status_code == 401
    assert (await http.get("/health")).status_code == 200
    assert "muxfleet_requests_unauthorized_total 5.0" in (await http.get("/metrics")).text


async def test_keys__right_one__is_let_in_either_way_and_named_in_the_ring_only(http) -> None:
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key)]))

    for headers in (bearer(key), {"x-api-key": key.secret}):
        assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    assert key.secret not in key.hash


async def test_keys__replaced_while_running__old_ones_end_new_ones_work(http) -> None:
    old, new = make_key(), make_key()
    http.gateway.access.set_keys(KeyRing([entry(old)]))
    http.gateway.access.set_keys(KeyRing([entry(new)]))

    assert (await http.post("/v1/completions", json=BODY, headers=bearer(old))).status_code == 401
    assert (await http.post("/v1/completions", json=BODY, headers=bearer(new))).status_code == 200


async def test_keys__allow_list__403_elsewhere_and_other_models_unseen(http) -> None:
    key, operator = make_key(), make_key()
    http.gateway.access.set_keys(
        KeyRing([entry(key, models=frozenset({"other"})), entry(operator, name="ops", is_admin=True)])
    )
    http.served.show(http.served.units[0], models=(MODEL, "other"))
    refused = await http.post("/v1/completions", json=BODY, headers=bearer(key))
    listed = await http.get("/v1/models", headers=bearer(key))

    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert [m["id"] for m in listed.json()["data"]] == ["other"]
    assert (await http.get(f"/v1/models/{MODEL}", headers=bearer(key))).status_code == 404
    assert len((await http.get("/v1/models", headers=bearer(operator))).json()["data"]) == 2


async def test_rate__used_up__429_with_computed_wait_and_headers(http) -> None:
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key, requests_per_minute=2)]))
    replies = [await http.post("/v1/completions", json=BODY, headers=bearer(key)) for _ in range(3)]

    assert [r.status_code for r in replies] == [200, 200, 429]
    assert [r.headers["x-ratelimit-remaining-requests"] for r in replies] == ["1", "0", "0"]
    assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert 20 <= int(replies[2].headers["retry-after"]) <= 30
    assert 'muxfleet_requests_rate_limited_total{key="team"} 1.0' in (await http.get("/metrics")).text


async def test_rate__tokens_of_prompt_and_answer__count(http) -> None:
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key, tokens_per_minute=5)]))
    first = await http.post("/v1/completions", json=BODY, headers=bearer(key))
    second = await http.post("/v1/completions", json=BODY, headers=bearer(key))

    assert first.headers["x-ratelimit-limit-tokens"] == "5"
    assert (first.status_code, second.status_code) == (200, 429)
    used = first.json()["usage"]["total_tokens"]
    metrics = (await http.get("/metrics")).text
    assert f'muxfleet_key_tokens_total{{key="team"}} {float(used)}' in metrics
    assert 'muxfleet_key_generations_total{key="team"} 1.0' in metrics


@pytest.mark.parametrize(("prompt", "answers"), [("hello", {"n": 3}), (["hello", "hello"], {"n": 2})])
async def test_rate__several_choices__prompt_is_charged_once(http, prompt: str | list[str], answers: dict) -> None:
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key, tokens_per_minute=500)]))
    reply = await http.post("/v1/completions", json={**BODY, "prompt": prompt, **answers}, headers=bearer(key))

    used = reply.json()["usage"]["total_tokens"]
    assert f'muxfleet_key_tokens_total{{key="team"}} {float(used)}' in (await http.get("/metrics")).text


async def targets_s_of_last(http) -> tuple[float, float]:
    """Returns those that were granted, of which the unit has what the wait at the gateway left."""
    await eventually(lambda: http.gateway.receipts.told().last)
    (receipt, *_), slo = http.gateway.receipts.told().last, http.served.units[0].requests[0].slo
    assert slo.tbt_s == receipt.target_tbt_s
    assert 0 < slo.ttft_s <= receipt.target_ttft_s
    return receipt.target_ttft_s, receipt.target_tbt_s


async def test_headers__looser_targets__reach_the_unit(http) -> None:
    http.served.show(*http.served.units, slo=OWN)
    headers = {"x-muxfleet-slo-ttft-ms": "9500", "x-llm-d-slo-tpot-ms": "900", "x-muxfleet-priority": "high"}
    reply = await http.post("/v1/completions", json=BODY, headers=headers)

    assert reply.status_code == 200
    assert await targets_s_of_last(http) == (9.5, 0.9)
    assert "x-muxfleet-slo-clamped" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("headers", "targets_s", "told"),
    [
        ({"x-muxfleet-slo-tpot-ms": "1"}, (2.0, 0.2), "tpot-ms=200"),
        ({"x-llm-d-slo-ttft-ms": "1999"}, (2.0, 0.2), "ttft-ms=2000"),
        ({"x-muxfleet-slo-ttft-ms": "1500", "x-muxfleet-slo-tpot-ms": "199"}, (2.0, 0.2), "ttft-ms=2000, tpot-ms=200"),
        ({"x-muxfleet-slo-ttft-ms": "1500", "x-muxfleet-slo-tpot-ms": "300"}, (2.0, 0.3), "ttft-ms=2000"),
    ],
)
async def test_headers__tighter_target_than_the_models_own__the_models_own_holds_and_the_answer_says_so(
    http, headers: dict[str, str], targets_s: tuple[float, float], told: str, stream: bool
) -> None:
    http.served.show(*http.served.units, slo=OWN)
    reply = await http.post("/v1/completions", json={**BODY, "stream": stream}, headers=headers)

    assert reply.status_code == 200
    assert await targets_s_of_last(http) == targets_s
    assert reply.headers["x-muxfleet-slo-clamped"] == told


@pytest.mark.parametrize("may", [False, True])
async def test_headers__tighter_target__is_granted_to_a_key_that_may(http, may: bool) -> None:
    http.served.show(*http.served.units, slo=OWN)
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key, may_tighten_slo=may)]))
    headers = {**bearer(key), "x-muxfleet-slo-ttft-ms": "1500", "x-muxfleet-slo-tpot-ms": "40"}
    reply = await http.post("/v1/completions", json=BODY, headers=headers)

    assert await targets_s_of_last(http) == ((1.5, 0.04) if may else (2.0, 0.2))
    assert ("x-muxfleet-slo-clamped" in reply.headers) is not may


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-muxfleet-slo-ttft-ms", "soon"),
        ("x-muxfleet-slo-ttft-ms", "0"),
        ("x-muxfleet-slo-ttft-ms", "1e-323"),  # in seconds it is 0
        ("x-muxfleet-slo-ttft-ms", "-1"),
        ("x-llm-d-slo-ttft-ms", "-inf"),
        ("x-muxfleet-slo-tpot-ms", "0.0"),
        ("x-muxfleet-slo-tpot-ms", "inf"),
        ("x-muxfleet-slo-tpot-ms", "nan"),
        ("x-muxfleet-slo-tpot-ms", "1e12"),
        ("x-muxfleet-priority", "urgent"),
        ("x-muxfleet-conversation", "c" * 200),
    ],
)
async def test_headers__bad_value__400_names_it(http, name: str, value: str) -> None:
    reply = await http.post("/v1/completions", json=BODY, headers={name: value})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == name


async def test_target__cannot_be_met_without_a_unit__503_within_it(http) -> None:
    http.served.show(models=(MODEL, "cold"))
    async with asyncio.timeout(20):  # the gateway's own patience is longer
        reply = await http.post(
            "/v1/completions", json={**BODY, "model": "cold"}, headers={"x-muxfleet-slo-ttft-ms": "200"}
        )

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_capacity")
    assert 1 <= int(reply.headers["retry-after"]) <= 120


async def test_service_report__streamed_or_not__is_in_the_headers_and_the_log(http, caplog) -> None:
    caplog.set_level(logging.INFO, logger="muxfleet.requests")
    whole = await http.post("/v1/completions", json=BODY, headers={"x-request-id": "r-1", "x-muxfleet-tenant": "t"})
    stream = await http.post("/v1/completions", json={**BODY, "stream": True})

    for reply in (whole, stream):
        assert reply.headers["x-muxfleet-unit"] == "unit-a"
        assert reply.headers["x-muxfleet-slo"] == "met"
        for name in ("queue", "cold", "prefill"):
            assert float(reply.headers[f"x-muxfleet-{name}-ms"]) >= 0
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "muxfleet.requests"]
    assert [(line["status"], line["unit"], line["output_tokens"]) for line in lines] == [(200, "unit-a", 3)] * 2
    assert (lines[0]["request_id"], lines[0]["tenant"]) == ("r-1", "t")


async def test_logs__any_request__hold_no_key_prompt_or_answer(http, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    key = make_key()
    http.gateway.access.set_keys(KeyRing([entry(key)]))
    await http.post("/v1/completions", json={**BODY, "prompt": "very private"}, headers=bearer(key))
    await http.post("/v1/completions", json=BODY, headers={"authorization": "Bearer mxf_wrong"})

    ours = [r for r in caplog.records if r.name.startswith(("router", "muxfleet", "pdmux_actor"))]
    text = "\n".join(f"{r.getMessage()} {r.__dict__}" for r in ours)
    assert ours
    for secret in (key.secret, key.secret.split("_", 2)[2], "very private", "mxf_wrong"):
        assert secret not in text


async def test_request_headers__too_large__431(http) -> None:
    reply = await http.get("/health", headers={"x-padding": "x" * 40_000})

    assert reply.status_code == 431
    assert reply.json()["error"]["code"] == "headers_too_large"


async def test_body__comes_too_slowly__408(serve) -> None:
    served = await serve(FakeUnit(), limits=GatewayLimits(body_timeout_s=0.2))

    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
    writer.write(b"content-length: 100\r\n\r\n{")
    async with asyncio.timeout(20):
        status = await reader.readline()
    writer.close()

    assert b" 408 " in status


async def test_stream__client_reads_nothing__is_let_go_and_its_request_cancelled(serve) -> None:
    unit = FakeUnit(tokens_per_delta=1)
    unit.max_model_len = 4096
    limits = GatewayLimits(write_timeout_s=0.3, keep_alive_s=0.1)
    served = await serve(unit, limits=limits)
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    # Each event carries 20 alternatives per token: more than the sockets' buffers take.
    body = json.dumps({**BODY, "max_tokens": 3000, "stream": True, "logprobs": 20, "n": 16}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    await reader.readline()  # it has begun; nothing more is read

    await eventually(lambda: is_idle(served.gateway.scheduler), deadline_s=60)
    await eventually(lambda: len(unit.cancelled) > 0)
    writer.close()


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), max_size=80),
    st.integers(1, 60),
    st.integers(1, 3),
)
def test_rate_limits__any_use__never_beyond_the_rate_and_waits_suffice(uses, per_minute, gateways) -> None:
    limits = RateLimits()
    key = KeyEntry(key_id="k", name="n", hash="h", requests_per_minute=per_minute)
    now_s, let_in = 0.0, []
    for pause_s, _ in uses:
        now_s += pause_s
        status = limits.enter(key, now_s, num_gateways=gateways)
        if status.retry_after_s is None:
            let_in.append(now_s)
        else:
            now_s += status.retry_after_s
            assert limits.enter(key, now_s, num_gateways=gateways).retry_after_s is None
            let_in.append(now_s)
    share = max(1.0, per_minute / gateways)
    for i, start_s in enumerate(let_in):  # a full bucket and what flows in meanwhile
        within = [t for t in let_in[i:] if t - start_s <= 60.0]
        assert len(within) <= 2 * share + 1


@given(st.text(max_size=80))
def test_key_ring__any_text__is_refused_without_an_error_of_ours(text: str) -> None:
    ring = KeyRing([entry(make_key())])
    with pytest.raises(InvalidApiKey):
        ring.admit(text)


def test_make_key__many__differ_and_fit_the_ring() -> None:
    made = [make_key() for _ in range(50)]
    ring = KeyRing([entry(key, name=str(i), priority=Priority.LOW) for i, key in enumerate(made)])

    assert Counter(ring.admit(key.secret).name for key in made) == Counter(str(i) for i in range(50))
