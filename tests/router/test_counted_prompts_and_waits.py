"""What /metrics says of waits and prompts is what happened to the requests, as their own reports have it."""

import asyncio
from pathlib import Path

import pytest
from fake_unit import FakeUnit, eventually, fleet_view
from prometheus_client.parser import text_string_to_metric_families
from served_gateway import InlineText

from pdmux_actor.messages import Slo
from router.errors import ModelUnavailable
from router.limits import GatewayLimits
from router.openai.body import parse_body
from router.openai.completions import CompletionRequest
from router.request_terms import AdmissionRequest, Caller, left_of
from router.serving.gateway import Gateway
from router.serving.response import GenerationResponse

MODEL = "demo/bytes"
BODY = b'{"model": "demo/bytes", "prompt": "%s", "max_tokens": 2, "n": %d}'


def request(prompt: bytes = b"hi", n: int = 1) -> CompletionRequest:
    return parse_body(BODY % (prompt, n), CompletionRequest)


async def answered(gateway: Gateway, asked: CompletionRequest) -> GenerationResponse:
    response = await gateway.complete(asked)
    await response.document()
    return response


def counted(gateway: Gateway, name: str) -> float:
    families = text_string_to_metric_families(gateway.metrics.exposition().decode())
    return sum(s.value for f in families for s in f.samples if s.name == name and s.labels.get("model") == MODEL)


async def test_request__held_for_the_first_unit_of_its_model__is_late_in_the_metrics_too(tokenizer_folder) -> None:
    now_s = [100.0]
    gateway = Gateway(clock=lambda: now_s[0], start_text=InlineText.start)
    hasty = Slo(ttft_s=5.0, tbt_s=60.0)
    async with FakeUnit() as unit:
        gateway.update_view(fleet_view(source=tokenizer_folder, slo=hasty))
        asking = asyncio.create_task(answered(gateway, request()))
        await eventually(lambda: any(m.held for m in gateway.demand_report().models))
        now_s[0] = 107.0
        gateway.update_view(fleet_view(unit, source=tokenizer_folder, slo=hasty))
        report = (await asking).report
    await gateway.close()

    assert (report.ttft_s, report.queue_s, report.in_time) == (7.0, 7.0, False)
    assert unit.requests[0].slo == left_of(hasty, 7.0), "its target counts on the unit from when it came, too"
    assert counted(gateway, "muxfleet_time_to_first_token_seconds_sum") == 7.0
    assert counted(gateway, "muxfleet_queue_time_seconds_sum") == 7.0
    assert counted(gateway, "muxfleet_request_duration_seconds_sum") == 7.0
    assert counted(gateway, "muxfleet_answers_total") == 1
    assert counted(gateway, "muxfleet_requests_in_time_total") == 0


async def test_deadline__of_a_client_whose_model_was_held__is_what_it_sent(tokenizer_folder, monkeypatch) -> None:
    now_s = [100.0]
    gateway = Gateway(clock=lambda: now_s[0], start_text=InlineText.start)
    offered: list[AdmissionRequest] = []
    offer = gateway.scheduler.offer
    monkeypatch.setattr(gateway.scheduler, "offer", lambda asked, at_s: offered.append(asked) or offer(asked, at_s))
    async with FakeUnit() as unit:
        gateway.update_view(fleet_view(source=tokenizer_folder))
        asking = asyncio.create_task(gateway.complete(request(), Caller(ttft_s=5.0)))
        await eventually(lambda: any(m.held for m in gateway.demand_report().models))
        now_s[0] = 104.0
        gateway.update_view(fleet_view(unit, source=tokenizer_folder))
        await (await asking).document()
    await gateway.close()

    assert [asked.deadline_s for asked in offered] == [105.0]


async def test_prompt_tokens__request_that_no_unit_got__are_none(tokenizer_folder: Path) -> None:
    gateway = Gateway(GatewayLimits(hold_s=0.1), start_text=InlineText.start)
    async with FakeUnit() as unit:
        gateway.update_view(fleet_view(unit, source=tokenizer_folder))
        await answered(gateway, request(b"x" * 20))
        gateway.update_view(fleet_view(source=tokenizer_folder))
        with pytest.raises(ModelUnavailable):
            await answered(gateway, request(b"x" * 1000))
    await gateway.close()

    assert counted(gateway, "muxfleet_prompt_tokens_total") == 20


async def test_routed_prefix_tokens__several_choices_of_a_prompt__count_it_once(tokenizer_folder: Path) -> None:
    gateway = Gateway(start_text=InlineText.start)
    async with FakeUnit() as unit:
        gateway.update_view(fleet_view(unit, source=tokenizer_folder))
        for n in (1, 4):
            await answered(gateway, request(b"x" * 1000, n))
    await gateway.close()

    assert counted(gateway, "muxfleet_prompt_tokens_total") == 2000
    assert 900 <= counted(gateway, "muxfleet_routed_prefix_tokens_total") <= 1000
