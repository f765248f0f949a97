"""Decode steps that are handed out before the one in flight has ended: who is answered what, and whose KV stays."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from drawn_events import check_ends_and_blocks, drawn_steps, timed_events
from engine_rig import PLAIN, TOTAL_BLOCKS, VirtualEngine, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmux_actor.executor.simulated import SimulatedExecutor
from pdmux_actor.messages import FinishReason, GenerateRequest
from pdmux_actor.scheduling.events import Abort, Arrival, Event, RemoveModel
from pdmux_actor.scheduling.launch import DecodeStep, Launch, LaunchCompletion, PrefillSlice, lane_number
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings


class TwoDeepExecutor(SimulatedExecutor):
    """Takes a step behind the one in flight, as a GPU's stream does. Every launch on a lane must have its KV."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)
        self.behind: DecodeStep | None = None
        self.num_early = self.num_decodes = 0

    def submit(self, launch: Launch) -> None:
        self.num_decodes += isinstance(launch, DecodeStep)
        if not isinstance(launch, DecodeStep) or not launch.ahead:
            super().submit(launch)
            return
        before = self._lanes[lane_number(launch)].launch
        assert self.behind is None
        assert (before.model, before.sequences, before.part) == (launch.model, launch.sequences, launch.part)
        assert before.steps == launch.ahead
        self.behind, self.num_early = launch, self.num_early + 1

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        self.check_kv()
        done = super().wait(deadline_s)
        if self.behind is not None and any(isinstance(ended.launch, DecodeStep) for ended in done):
            step, self.behind = self.behind, None
            # What it takes is known now; what it brings, when it has ended.
            super().submit(msgspec.structs.replace(step, ahead=0))
            self._lanes[lane_number(step)].launch = step
        return done

    def check_kv(self) -> None:
        launches = [work.launch for work in self._lanes.values()] + ([] if self.behind is None else [self.behind])
        for launch in launches:
            if not isinstance(launch, PrefillSlice):
                for sequence in launch.sequences:
                    assert sequence.rows, "the KV of a launch that uses it was given away"


def run(events: Sequence[tuple[float, Event]], *, early_steps: bool, **changes: object) -> VirtualEngine:
    given = changes.pop("settings", PLAIN)
    return VirtualEngine(
        events, settings=replace(given, early_steps=early_steps), executor_type=TwoDeepExecutor, **changes
    ).run()


def tokens_and_ends(engine: VirtualEngine, request_id: str) -> tuple[list[int], list[FinishReason | None]]:
    return engine.tokens_of(request_id), [end.finish for end in engine.ends_of(request_id)]


def stopping_at(request: GenerateRequest, *token_ids: int) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, stop_token_ids=token_ids))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_early_steps__alone_and_beside_prompts__same_answers_and_the_lane_waits_for_no_decision(policy: str) -> None:
    requests = [
        make_request("a", max_tokens=60, tbt_s=0.1),
        make_request("b", max_tokens=33, first=2, tbt_s=0.1),
        make_request("long", prompt_tokens=150, max_tokens=20, first=3, tbt_s=0.1),
    ]
    events = [(0.05 * i, Arrival(request)) for i, request in enumerate(requests)]
    with_early, without = (
        run(events, early_steps=on, policy=policy, quota_blocks=500, num_sms=4) for on in (True, False)
    )

    for request in requests:
        assert tokens_and_ends(with_early, request.request_id) == tokens_and_ends(without, request.request_id)
    # Some fuse every step with what waits, or with nothing.
    assert (with_early.executor.num_early > 10) is (without.executor.num_decodes > 10)
    assert without.executor.num_early == 0
    report = with_early.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == TOTAL_BLOCKS


def test_early_steps__one_stops_at_a_token__is_told_no_more_and_the_others_go_on() -> None:
    plain = [make_request(name, max_tokens=30, first=first, tbt_s=0.1) for name, first in (("a", 1), ("b", 2))]
    engine = run([(0.0, Arrival(request)) for request in plain], early_steps=False)
    eleventh = engine.tokens_of("a")[10]
    expected = engine.tokens_of("a")[: engine.tokens_of("a").index(eleventh) + 1]

    stopping = [stopping_at(plain[0], eleventh), plain[1]]
    early = run([(0.0, Arrival(request)) for request in stopping], early_steps=True)

    assert tokens_and_ends(early, "a") == (expected, [FinishReason.STOP])
    assert tokens_and_ends(early, "b") == tokens_and_ends(engine, "b")
    assert early.executor.num_early > 3


@pytest.mark.parametrize("at_s", [0.02 + 0.0007 * i for i in range(8)])
def test_early_steps__aborted_or_unloaded_meanwhile__ends_once_and_the_blocks_come_back(at_s: float) -> None:
    arrivals = [(0.0, Arrival(make_request(name, max_tokens=60, first=i))) for i, name in enumerate("ab")]
    aborted = run([*arrivals, (at_s, Abort("a"))], early_steps=True)
    removed = run([*arrivals, (at_s, RemoveModel("a"))], early_steps=True)

    assert [end.finish for end in aborted.ends_of("a")] == [FinishReason.ABORT]
    assert len(aborted.tokens_of("b")) == 60
    assert [end.finish for name in "ab" for end in removed.ends_of(name)] == [FinishReason.ERROR] * 2
    assert not removed.scheduler.take_detached()  # the loop has taken it
    assert not removed.scheduler.load_report().models


def test_early_steps__sure_to_end_with_the_step_in_flight__none_is_handed_out() -> None:
    engine = run([(0.0, Arrival(make_request("a", max_tokens=2)))], early_steps=True)

    assert len(engine.tokens_of("a")) == 2
    assert engine.executor.num_early == 0


def beside_two_that_decode(
    early_steps: bool, *, prompt_tokens: int, at_s: float, tbt_s: float, num_sms: int
) -> tuple[float, list[float]]:
    """How long a prompt waits for its first token, and the gaps between all."""
    decoding = [make_request(name, max_tokens=60, first=first, tbt_s=tbt_s) for name, first in (("a", 1), ("c", 9))]
    late = make_request("b", prompt_tokens=prompt_tokens, max_tokens=6, first=2, tbt_s=tbt_s)
    events = [*((0.0, Arrival(request)) for request in decoding), (at_s, Arrival(late))]
    engine = run(events, early_steps=early_steps, num_sms=num_sms, quota_blocks=400)
    times_s = [
        at_s
        for event, at_s in zip(engine.token_events, engine.event_times_s, strict=True)
        if event.request_id == "b"
        for _ in event.tokens
    ]
    return times_s[0] - at_s, [after - before for before, after in pairwise(times_s)]


@pytest.mark.parametrize(("num_sms", "prompt_tokens"), [(4, 8), (4, 54), (8, 12), (8, 126)])
def test_early_steps__first_token_while_one_is_handed_out__is_held_until_the_second_can_follow(
    num_sms: int, prompt_tokens: int
) -> None:
    for number in range(5):
        _, gaps_s = beside_two_that_decode(
            True, prompt_tokens=prompt_tokens, at_s=0.05 + 0.0008 * number, tbt_s=0.007, num_sms=num_sms
        )
        assert max(gaps_s) <= 0.007 + 1e-9


@pytest.mark.parametrize("at_s", [0.05 + 0.0008 * number for number in range(6)])
def test_early_steps__policy_leaves_sms_to_prompts__prompts_begin_as_soon_as_without(at_s: float) -> None:
    """A step is 4 ms: the first one of a batch has the whole device, those that follow leave some."""
    with_early, without = (
        beside_two_that_decode(on, prompt_tokens=100, at_s=at_s, tbt_s=0.02, num_sms=4)[0] for on in (True, False)
    )

    assert with_early == pytest.approx(without)


_steps = drawn_steps(models="aaabc", most_output_tokens=40, kinds=[(), (7, 100, 140)], most_aborted=20, most_steps=25)


@settings(max_examples=60, deadline=None)
@given(
    steps=_steps,
    gap_s=st.sampled_from([0.0, 0.003, 0.03]),
    num_sms=st.integers(1, 4),
    policy=st.sampled_from(["mux", "mux", *sorted(POLICIES)]),
    prefix_cache=st.booleans(),
    decode_lanes=st.sampled_from([1, 4]),
)
def test_early_steps__any_events__every_request_ends_once_and_blocks_balance(
    steps, gap_s, num_sms, policy, prefix_cache, decode_lanes
) -> None:
    events, requests = timed_events(steps, gap_s, lambda request, stops: stopping_at(request, *stops))
    small = SchedulerSettings(
        max_batch_tokens=100,
        chunk_budget_tokens=16,
        max_running_sequences=5,
        prefix_cache=prefix_cache,
        quota_period_s=0.05,
        decode_lanes=decode_lanes,
    )

    engine = run(events, early_steps=True, policy=policy, models="abc", num_sms=num_sms, settings=small)

    check_ends_and_blocks(engine, requests)
    for request in requests:
        told, stops = engine.tokens_of(request.request_id), request.sampling.stop_token_ids
        assert len(told) <= request.sampling.max_tokens
        assert not [token for token in told[:-1] if token in stops]
