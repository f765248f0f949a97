"""What a unit's load report says of whole requests: first token and every gap within target."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_rig import PLAIN, LinearLatency, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Abort, Arrival
from pdmux_actor.scheduling.policies.registry import POLICIES
from profiler.specs import ModelSpec


def _load(engine: VirtualEngine):
    (load,) = engine.scheduler.load_report().models
    return load


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_load_report__one_request_of_three_in_time__counts_the_three_and_the_one(policy: str) -> None:
    requests = [
        make_request("in time", first=1, ttft_s=10.0, tbt_s=10.0),
        make_request("late first token", first=2, ttft_s=1e-6, tbt_s=10.0),
        make_request("late gaps", first=3, max_tokens=20, ttft_s=10.0, tbt_s=1e-6),
    ]
    engine = VirtualEngine([(0.0, Arrival(r)) for r in requests], policy=policy).run()

    load = _load(engine)
    assert (load.requests_ended_total, load.requests_in_time_total) == (3, 1)


def test_load_report__one_late_gap_among_many__the_request_is_late() -> None:
    """The share of gaps hides it: 37 % of the requests may have a late second token at 99.8 % of gaps in time."""
    crowd = make_request("crowd", first=2, prompt_tokens=160, max_tokens=2, ttft_s=10.0, tbt_s=10.0)
    request = make_request("r", first=1, max_tokens=60, ttft_s=10.0, tbt_s=0.03)
    engine = VirtualEngine([(0.0, Arrival(request)), (0.1, Arrival(crowd))], policy="prefill_first")
    engine.loop.turn()
    _load(engine)  # the shares are those since the report before
    engine.run()

    load = _load(engine)
    assert load.requests_ended_total == 2
    assert load.requests_in_time_total == 1
    assert load.tbt_attainment >= 0.95


def test_load_report__client_leaves__counts_only_if_it_was_late_already() -> None:
    patient = make_request("patient", first=1, max_tokens=100, ttft_s=10.0, tbt_s=10.0)
    annoyed = make_request("annoyed", first=2, max_tokens=100, ttft_s=1e-6, tbt_s=10.0)
    events = [(0.0, Arrival(patient)), (0.0, Arrival(annoyed)), (0.1, Abort("patient")), (0.1, Abort("annoyed"))]
    engine = VirtualEngine(events).run()

    load = _load(engine)
    assert (load.requests_ended_total, load.requests_in_time_total) == (1, 0)


def test_load_report__continued_from_another_unit__its_first_token_is_not_judged_here() -> None:
    continued = make_request("r", prior=(7,), max_tokens=4, ttft_s=1e-6, tbt_s=10.0)
    engine = VirtualEngine([(0.0, Arrival(continued))]).run()

    load = _load(engine)
    assert (load.requests_ended_total, load.requests_in_time_total) == (1, 1)


def test_load_report__two_reports__attainment_is_of_what_ended_between_them() -> None:
    engine = VirtualEngine([(0.0, Arrival(make_request("r", ttft_s=10.0, tbt_s=10.0)))])
    first = _load(engine) if engine.scheduler.load_report().models else None
    engine.run()
    late = _load(engine)

    assert first is None or first.request_attainment is None
    assert late.request_attainment == 1.0


class NeedsAllSms(LinearLatency):
    """Decode takes twice as long on half of the device."""

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return 0.01 * 2 / sms


@pytest.mark.parametrize("policy", ["mux", "chunked_prefill"])
def test_prompt__decode_needs_the_whole_device__is_fused_in_parts_that_the_running_targets_admit(policy: str) -> None:
    """Whole it makes a gap of 35 ms, and beside it a step takes 20: all but small parts miss the target of 18."""
    running = [make_request(f"r{i}", first=i + 2, max_tokens=60, ttft_s=10.0, tbt_s=0.018) for i in range(4)]
    prompt = make_request("prompt", first=1, prompt_tokens=120, max_tokens=20, ttft_s=10.0, tbt_s=0.018)
    events = [*((0.0, Arrival(r)) for r in running), (0.2, Arrival(prompt))]
    settings = replace(PLAIN, chunk_budget_tokens=32)
    engine = VirtualEngine(events, policy=policy, quota_blocks=600, settings=settings, latency=NeedsAllSms()).run()

    load = _load(engine)
    assert (load.requests_ended_total, load.requests_in_time_total) == (5, 5)
