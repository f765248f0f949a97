from dataclasses import replace

import msgspec
import pytest
from drawn_events import check_ends_and_blocks, drawn_steps, timed_events
from engine_rig import INFOS, PLAIN, TOTAL_BLOCKS, LinearLatency, VirtualEngine, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmux_actor.executor.simulated import SimulatedExecutor
from pdmux_actor.messages import FinishReason, LogitsProcessing
from pdmux_actor.scheduling.events import Abort, Arrival, RemoveModel, SetPolicy
from pdmux_actor.scheduling.launch import sampling_sequences
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

ALL_POLICIES = sorted(POLICIES)


class BrokenForSome(SimulatedExecutor):
    """Sequences named "bad" have an error instead of tokens from output token `first_bad` on."""

    first_bad = 1

    def wait(self, deadline_s):
        return [self._broken(done) for done in super().wait(deadline_s)]

    def _broken(self, done):
        sampling = sampling_sequences(done.launch, self._infos[done.launch.model].spec.num_layers)
        errors = {
            place: "not finite"
            for place, sequence in enumerate(sampling)
            if sequence.request.request_id == "bad" and sequence.num_output_tokens >= self.first_bad
        }
        tokens = tuple(() if place in errors else of_one for place, of_one in enumerate(done.tokens))
        return msgspec.structs.replace(done, tokens=tokens, sequence_errors=errors)


class BrokenAtOnce(BrokenForSome):
    first_bad = 0


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_scheduler__one_sequence_fails_in_a_launch__the_others_go_on(policy):
    requests = [make_request(name, prompt_tokens=40, max_tokens=6, first=i) for i, name in enumerate("xyz", start=1)]
    bad = make_request("bad", prompt_tokens=40, max_tokens=6, first=9)
    arrivals = [(0.001 * i, Arrival(r)) for i, r in enumerate([*requests[:2], bad, requests[2]])]
    cached = replace(PLAIN, prefix_cache=True)

    engine = VirtualEngine(arrivals, policy=policy, settings=cached, executor_type=BrokenForSome).run()

    (end,) = engine.ends_of("bad")
    assert (end.finish, end.error) == (FinishReason.ERROR, "not finite")
    assert all(len(engine.tokens_of(name)) == 6 for name in "xyz")


class AllowsThreeAndSeven:
    """An OutputConstraint."""

    def fill_mask(self, token_ids, words):
        words[:] = 0
        words[0] = 1 << 3 | 1 << 7

    def simulated_token(self, token_ids, made_up):
        return 3


@pytest.mark.parametrize(
    ("bad_words", "param"),
    [
        (((3,), (7,)), "bad_words"),
        (((3,), (9, 7)), None),  # the second is a phrase whose beginning is not there
        (((3,),), None),
        ((), None),
    ],
)
def test_scheduler__bad_words_ban_all_that_the_form_allows__is_the_requests_own_fault(bad_words, param):
    plain = make_request("bad", prompt_tokens=40, max_tokens=6)
    processing = LogitsProcessing(bad_words=bad_words)
    bad = replace(plain, sampling=replace(plain.sampling, processing=processing))

    arrival = Arrival(bad, constraint=AllowsThreeAndSeven())
    (end,) = VirtualEngine([(0.0, arrival)], executor_type=BrokenAtOnce).run().ends_of("bad")

    told = "at output token 1 it bans every token that the form allows" if param else "not finite"
    assert (end.finish, end.error, end.param) == (FinishReason.ERROR, told, param)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"min_tokens": 2, "stop_token_ids": (3,), "processing": LogitsProcessing(bad_words=((7,),))}, "bad_words"),
        ({"min_tokens": 2, "stop_token_ids": (3, 7)}, "min_tokens"),
        ({"stop_token_ids": (3,), "processing": LogitsProcessing(bad_words=((7,),))}, None),  # it may stop
        ({"min_tokens": 2, "stop_token_ids": (3,)}, None),
    ],
)
def test_scheduler__least_tokens_and_bad_words_leave_no_token__is_the_requests_own_fault(changes, param):
    plain = make_request("bad", prompt_tokens=40, max_tokens=6)
    bad = replace(plain, sampling=replace(plain.sampling, **changes))

    arrival = Arrival(bad, constraint=AllowsThreeAndSeven())  # stands for a vocabulary of two tokens
    (end,) = VirtualEngine([(0.0, arrival)], executor_type=BrokenAtOnce).run().ends_of("bad")

    told = "at output token 1 it leaves no token that may follow" if param else "not finite"
    assert (end.finish, end.error, end.param) == (FinishReason.ERROR, told, param)


def test_scheduler__sequence_whose_numbers_are_not_finite__is_no_prefix_for_others():
    """What it computed since its prefill would make every sequence that reused it fail, too."""
    bad = make_request("bad", prompt_tokens=40, max_tokens=6)
    longer = replace(make_request("ok", prompt_tokens=41), prompt_token_ids=(*bad.prompt_token_ids, 7))
    settings = replace(PLAIN, prefix_cache=True)

    engine = VirtualEngine([(0.0, Arrival(bad))], settings=settings, executor_type=BrokenAtOnce).run()
    again = VirtualEngine(
        [(0.0, Arrival(bad)), (1.0, Arrival(longer))], settings=settings, executor_type=BrokenAtOnce
    ).run()

    assert engine.scheduler.load_report().cached_blocks == 0
    assert len(again.tokens_of("ok")) == 4
    assert again.scheduler.load_report().models[0].prefix_hit_tokens_total == 0


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_scheduler__one_request__yields_max_tokens_and_one_end(policy):
    engine = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=5)))], policy=policy).run()

    assert len(engine.tokens_of("r")) == 5
    assert [e.finish for e in engine.ends_of("r")] == [FinishReason.LENGTH]
    assert engine.scheduler.load_report().free_blocks == TOTAL_BLOCKS


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_scheduler__stop_token_in_the_output__ends_it_there(policy):
    request = make_request("r", max_tokens=20)
    whole = VirtualEngine([(0.0, Arrival(request))], policy=policy).run().tokens_of("r")
    stop = whole[7]

    stopping = replace(request, sampling=replace(request.sampling, stop_token_ids=(stop,)))
    engine = VirtualEngine([(0.0, Arrival(stopping))], policy=policy).run()

    assert engine.tokens_of("r") == whole[: whole.index(stop) + 1]
    assert [e.finish for e in engine.ends_of("r")] == [FinishReason.STOP]


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_scheduler__same_requests__same_tokens_as_alone(policy):
    requests = [make_request(f"r{i}", "abc"[i % 3], 5 + 17 * i % 90, 3 + i % 9, first=i) for i in range(24)]
    alone = {
        r.request_id: VirtualEngine([(0.0, Arrival(r))], models="abc").run().tokens_of(r.request_id) for r in requests
    }

    arrivals = [(0.003 * i, Arrival(r)) for i, r in enumerate(requests)]
    together = VirtualEngine(arrivals, policy=policy, models="abc", quota_blocks=160).run()

    assert {r.request_id: together.tokens_of(r.request_id) for r in requests} == alone
    assert all(len(together.ends_of(r.request_id)) == 1 for r in requests)


def test_scheduler__prompt_longer_than_context__is_refused_with_remedy():
    engine = VirtualEngine([(0.0, Arrival(make_request("r", prompt_tokens=512)))], quota_blocks=TOTAL_BLOCKS).run()

    (end,) = engine.ends_of("r")
    assert end.finish is FinishReason.ERROR
    assert "512 tokens do not fit" in end.error
    assert "shorten the prompt" in end.error


def test_scheduler__unknown_model__is_refused():
    engine = VirtualEngine([(0.0, Arrival(make_request("r", model="nope")))]).run()

    assert [e.finish for e in engine.ends_of("r")] == [FinishReason.ERROR]


@pytest.mark.parametrize("stranger", [-1, 512, 10**6])
def test_scheduler__token_id_outside_the_vocabulary__is_refused_and_named(stranger):
    good = make_request("good", max_tokens=3)
    bad = replace(make_request("bad"), prompt_token_ids=(1, stranger, 2))

    engine = VirtualEngine([(0.0, Arrival(good)), (0.0, Arrival(bad))]).run()

    (end,) = engine.ends_of("bad")
    assert end.finish is FinishReason.ERROR
    assert f"token id {stranger} is not in the vocabulary" in end.error
    assert [e.finish for e in engine.ends_of("good")] == [FinishReason.LENGTH]


def test_scheduler__generation_reaches_kv_quota__ends_with_length():
    rows = 3
    engine = VirtualEngine(
        [(0.0, Arrival(make_request("r", prompt_tokens=4, max_tokens=400)))],
        quota_blocks=rows * INFOS["a"].geometry.blocks_per_row,
    ).run()

    total = 4 + len(engine.tokens_of("r"))
    assert total == rows * INFOS["a"].geometry.tokens_per_row
    assert [e.finish for e in engine.ends_of("r")] == [FinishReason.LENGTH]


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_scheduler__memory_runs_out__preempts_and_loses_nothing(policy):
    requests = [make_request(f"r{i}", prompt_tokens=10, max_tokens=40, first=i) for i in range(6)]
    arrivals = [(0.0, Arrival(r)) for r in requests]
    quota = 10 * INFOS["a"].geometry.blocks_per_row

    engine = VirtualEngine(arrivals, policy=policy, quota_blocks=quota, settings=replace(PLAIN, kv_watermark=0.0)).run()

    assert engine.scheduler.load_report().models[0].preemptions_total > 0
    for request in requests:
        assert len(engine.tokens_of(request.request_id)) == 40
        assert len(engine.ends_of(request.request_id)) == 1


def test_scheduler__abort_while_decoding__frees_blocks_within_one_step():
    events = [(0.0, Arrival(make_request("r", max_tokens=300))), (0.1, Abort("r"))]
    engine = VirtualEngine(events)
    while not engine.ends_of("r"):
        engine.loop.turn()
    steps = engine.scheduler.load_report().steps_total

    engine.run()

    assert [e.finish for e in engine.ends_of("r")] == [FinishReason.ABORT]
    assert engine.scheduler.load_report().steps_total - steps <= 1
    assert engine.scheduler.load_report().free_blocks == TOTAL_BLOCKS


def test_scheduler__abort_between_prefill_slices__drops_the_batch():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=200, tbt_s=0.005))),
        (0.05, Arrival(make_request("long", prompt_tokens=150, max_tokens=4, tbt_s=0.005))),
        (0.065, Abort("long")),
    ]
    engine = VirtualEngine(events, quota_blocks=400).run()

    log = [d.launch for d in engine.scheduler.log.decisions()]
    assert any("drop batch" in line for line in log)
    assert engine.tokens_of("long") == []
    assert len(engine.tokens_of("decoding")) == 200


def test_scheduler__model_removed_under_load__others_go_on():
    events = [
        (0.0, Arrival(make_request("x", "a", max_tokens=50))),
        (0.0, Arrival(make_request("y", "b", max_tokens=50))),
        (0.05, RemoveModel("a")),
    ]
    engine = VirtualEngine(events, models="ab").run()

    assert [e.finish for e in engine.ends_of("x")] == [FinishReason.ERROR]
    assert len(engine.tokens_of("y")) == 50
    assert [m.model for m in engine.scheduler.load_report().models] == ["b"]


def test_scheduler__continued_request__samples_only_the_rest():
    whole = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=9)))]).run().tokens_of("r")

    rest = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=9, prior=tuple(whole[:4]))))]).run()

    assert rest.tokens_of("r") == whole[4:]


def test_mux__prompt_beside_tight_decode__runs_in_slices_beside_it():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=100, tbt_s=0.006))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=0.006))),
    ]
    engine = VirtualEngine(events, quota_blocks=500).run()

    log = [d.launch for d in engine.scheduler.log.decisions()]
    slices = [line for line in log if line.startswith("prefill a batch 2")]
    assert len(slices) > 1
    assert "partition prefill 1 decode 1" in log


def test_mux__prompt_that_fits_the_target__is_fused():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=100, tbt_s=0.5))),
        (0.05, Arrival(make_request("short", prompt_tokens=20, max_tokens=2, tbt_s=0.5))),
    ]
    engine = VirtualEngine(events, quota_blocks=500, num_sms=1).run()

    assert any(d.launch.startswith("mixed a tokens 0+20 decodes 1") for d in engine.scheduler.log.decisions())


def test_mux__decode_leaves_sms_free__a_prompt_starts_beside_it_at_once():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=100, tbt_s=0.5))),
        (0.0503, Arrival(make_request("short", prompt_tokens=20, max_tokens=2, tbt_s=0.5))),
    ]
    settings = replace(PLAIN, max_look_ahead_steps=1)
    engine = VirtualEngine(events, quota_blocks=500, num_sms=4, settings=settings).run()

    first_token_s = next(
        t for t, e in zip(engine.event_times_s, engine.token_events, strict=True) if e.request_id == "short"
    )
    assert first_token_s - 0.0503 == pytest.approx(1.1 * 0.005 * 2 / 3)  # the prefill alone, on 3 SMs, beside decode


def test_mux__several_prompts_wait__the_one_due_first_is_next_whatever_their_order():
    arrivals = [(0.0, Arrival(make_request("first", prompt_tokens=200, max_tokens=2)))]
    dues_s = {"late": 0.9, "soon": 0.5, "later": 0.95}
    for i, (name, due_s) in enumerate(dues_s.items(), start=1):
        request = make_request(name, prompt_tokens=200, max_tokens=2, first=i + 1, ttft_s=due_s)
        arrivals.append((0.001 * i, Arrival(request)))
    settings = replace(PLAIN, preempt_prefill=False)

    order = {}
    for policy in ("mux", "muxwise"):
        engine = VirtualEngine(arrivals, policy=policy, quota_blocks=600, settings=settings).run()
        order[policy] = list(dict.fromkeys(e.request_id for e in engine.token_events if e.tokens))

    assert order["mux"] == ["first", "soon", "late", "later"]
    assert order["muxwise"] == ["first", "late", "soon", "later"]


def test_scheduler__policy_is_changed_while_prompts_wait__they_wait_in_the_new_order():
    arrivals = [(0.0, Arrival(make_request("first", prompt_tokens=200, max_tokens=2)))]
    arrivals += [
        (0.001, Arrival(make_request("late", prompt_tokens=200, max_tokens=2, first=2, ttft_s=0.9))),
        (0.002, Arrival(make_request("soon", prompt_tokens=200, max_tokens=2, first=3, ttft_s=0.5))),
    ]
    for new_policy, expected in (("mux", ["first", "soon", "late"]), ("muxwise", ["first", "late", "soon"])):
        before = "muxwise" if new_policy == "mux" else "mux"
        engine = VirtualEngine([*arrivals, (0.003, SetPolicy(new_policy))], policy=before, quota_blocks=600).run()
        assert list(dict.fromkeys(e.request_id for e in engine.token_events if e.tokens)) == expected


@pytest.mark.parametrize(("fixed_s", "batches"), [(0.0, 3), (0.05, 1)])
def test_mux__prompts_wait_together__they_are_one_batch_only_where_that_saves_time(fixed_s, batches):
    """Without a fixed cost per launch three prompts take as long together as in turn, and the first would wait."""
    arrivals = [(0.0, Arrival(make_request(f"r{i}", prompt_tokens=100, max_tokens=2, first=i + 1))) for i in range(3)]
    engine = VirtualEngine(arrivals, quota_blocks=600, latency=LinearLatency(prefill_fixed_s=fixed_s)).run()

    started = [d.launch for d in engine.scheduler.log.decisions() if d.launch.startswith("prefill")]
    assert len({launch.split(" layers")[0] for launch in started}) == batches


def test_mux__single_sm__alternates_without_starving():
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=60, tbt_s=0.001))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=0.001))),
    ]
    engine = VirtualEngine(events, quota_blocks=500, num_sms=1).run()

    assert len(engine.tokens_of("decoding")) == 60
    assert len(engine.tokens_of("long")) == 2


def test_scheduler__two_first_tokens_of_one_launch_are_held_back__lengths_of_contexts_hold_both():
    """`VirtualEngine` asserts after every turn that the queues' kept lengths are those of its sequences."""
    events = [(0.0, Arrival(make_request("decoding", max_tokens=100, tbt_s=0.006)))]
    events += [(0.05, Arrival(make_request(f"r{i}", max_tokens=5, first=2 + i, tbt_s=0.006))) for i in range(3)]
    engine = VirtualEngine(events, quota_blocks=500, num_sms=4, latency=LinearLatency(prefill_fixed_s=0.05)).run()

    assert all(len(engine.tokens_of(f"r{i}")) == 5 for i in range(3))


_steps = drawn_steps(models="abc", most_output_tokens=30, kinds=[False, False, True], most_aborted=30, most_steps=40)


@settings(max_examples=150, deadline=None)
@given(
    steps=_steps,
    gap_s=st.sampled_from([0.0, 0.002, 0.02]),
    num_sms=st.integers(1, 4),
    policy=st.sampled_from(ALL_POLICIES),
    prefix_cache=st.booleans(),
    lendable_share=st.sampled_from([0.0, 0.5, 1.0]),
    decode_lanes=st.sampled_from([1, 2, 4]),
    longest_chunk_tokens=st.sampled_from([None, 30]),
)
def test_scheduler__any_events__every_request_ends_once_and_blocks_balance(
    steps, gap_s, num_sms, policy, prefix_cache, lendable_share, decode_lanes, longest_chunk_tokens
):
    events, requests = timed_events(steps, gap_s, lambda request, gives_way: replace(request, gives_way=gives_way))
    small = SchedulerSettings(
        max_batch_tokens=longest_chunk_tokens or 100,
        longest_chunk_tokens=longest_chunk_tokens,
        chunk_budget_tokens=16,
        max_running_sequences=5,
        prefix_cache=prefix_cache,
        kv_lendable_share=lendable_share,
        quota_period_s=0.05,
        decode_lanes=decode_lanes,
    )
    engine = VirtualEngine(events, policy=policy, models="abc", num_sms=num_sms, settings=small).run()

    check_ends_and_blocks(engine, requests)
