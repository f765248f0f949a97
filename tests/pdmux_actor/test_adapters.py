"""Adapters in the scheduler: in launches of their base, with KV, quotas and counts of their own."""

from dataclasses import replace

import pytest
from engine_rig import PLAIN, VirtualEngine, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmux_actor.messages import FinishReason
from pdmux_actor.scheduling.events import Abort, Arrival, AttachAdapter, RemoveModel, SetQuotas
from pdmux_actor.scheduling.policies.registry import POLICIES

CACHING = replace(PLAIN, prefix_cache=True)
X, Y = (AttachAdapter(name, "a", 40) for name in ("x", "y"))


def loads(engine):
    return {load.model: load for load in engine.scheduler.load_report().models}


def test_adapters__requests_at_once__share_launches_of_their_base():
    requests = [Arrival(make_request(f"r{i}", model, max_tokens=20)) for i, model in enumerate("axyxa")]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *((0.0, r) for r in requests)]).run()

    decodes = [d for d in engine.scheduler.log.decisions(100) if d.kind.value == "decode"]
    assert max(d.num_decoding for d in decodes) == 5
    assert {d.model for d in decodes} == {"a"}
    assert {len(engine.tokens_of(f"r{i}")) for i in range(5)} == {20}


def test_adapters__same_prompt__share_no_kv_with_each_other_or_their_base():
    models = ["a", "x", "y", "x", "a", "y"]
    arrivals = [
        (0.5 * i, Arrival(make_request(f"r{i}", model, prompt_tokens=41, max_tokens=2)))
        for i, model in enumerate(models)
    ]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *arrivals], settings=CACHING).run()

    told = {e.request_id: e.cached_tokens for e in engine.token_events if e.tokens and e.cached_tokens}
    assert told == {"r3": 40, "r4": 40, "r5": 40}
    assert {name: load.prefix_hit_tokens_total for name, load in loads(engine).items()} == {"a": 40, "x": 40, "y": 40}


def test_adapter__loaded_anew_under_its_name__finds_nothing_of_what_it_was():
    def ask(at_s, request_id):
        return (at_s, Arrival(make_request(request_id, "x", prompt_tokens=41, max_tokens=2)))

    again = [(1.0, RemoveModel("x")), (2.0, X)]
    engine = VirtualEngine(
        [(0.0, X), ask(0.1, "before"), *again, ask(3.0, "after"), ask(4.0, "last")], settings=CACHING
    )
    engine.run()

    assert {e.request_id: e.cached_tokens for e in engine.token_events if e.cached_tokens} == {"last": 40}


def test_adapters__quotas__are_what_the_family_has_together_and_told_one_by_one():
    long = make_request("long", "x", prompt_tokens=150, max_tokens=2)  # 152 blocks: more than its own part
    engine = VirtualEngine([(0.0, X), (0.0, Y), (0.0, Arrival(long))], quota_blocks=80).run()

    assert len(engine.tokens_of("long")) == 2
    assert {name: load.quota_blocks for name, load in loads(engine).items()} == {"a": 80, "x": 40, "y": 40}


def test_adapters__quotas_that_name_the_base__take_back_those_of_adapters_not_named():
    engine = VirtualEngine(
        [(0.0, X), (0.0, Y), (0.1, SetQuotas({"a": 150, "y": 50})), (0.2, SetQuotas({"y": 30}))]
    ).run()

    assert {name: load.quota_blocks for name, load in loads(engine).items()} == {"a": 150, "x": 0, "y": 30}


def test_adapters__while_they_run__loads_add_up_to_what_the_base_holds():
    arrivals = [(0.0, Arrival(make_request(f"r{i}", m, 24, 100))) for i, m in enumerate("axxy")]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *arrivals], settings=CACHING)
    while engine.executor.now() < 0.2:
        engine.loop.turn()

    told = loads(engine)
    assert {name: load.running for name, load in told.items()} == {"a": 1, "x": 2, "y": 1}
    held = engine.scheduler.load_report()
    assert sum(load.used_blocks for load in told.values()) == held.total_blocks - held.free_blocks - held.cached_blocks
    assert all(load.used_blocks > 0 and load.output_tokens_total > 0 for load in told.values())
    assert told["x"].output_tokens_total > told["y"].output_tokens_total
    assert {load.prefill_s_per_token for load in told.values()} == {told["a"].prefill_s_per_token}


def test_adapter__leaves_under_load__ends_its_requests_only():
    arrivals = [(0.0, Arrival(make_request(f"r{i}", m, max_tokens=100))) for i, m in enumerate("axay")]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *arrivals, (0.1, RemoveModel("x"))]).run()

    ends = {e.request_id: e for e in engine.token_events if e.finish}
    assert {r: e.finish for r, e in ends.items()} == {
        "r0": FinishReason.LENGTH,
        "r1": FinishReason.ERROR,
        "r2": FinishReason.LENGTH,
        "r3": FinishReason.LENGTH,
    }
    assert "'x' has left" in ends["r1"].error
    assert list(loads(engine)) == ["a", "y"]


@pytest.mark.parametrize("leaving", ["x", "xy"])
def test_adapter__has_left__what_it_counted_is_not_told_of_its_base(leaving):
    arrivals = [(0.0, Arrival(make_request(f"r{m}", m, 24, 30))) for m in "xy"]
    base = Arrival(make_request("ra", "a", 16, 10))
    left = [(1.0, RemoveModel(name)) for name in leaving]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *arrivals, (0.0, base), *left]).run()

    told = loads(engine)
    assert told.keys() == {"a", "x", "y"} - {*leaving}
    assert (told["a"].prompt_tokens_total, told["a"].output_tokens_total) == (16, 10)
    assert told["a"].requests_ended_total == 1
    assert told["a"].output_tokens_per_s <= 10.0


def test_adapter__leaves_while_its_prompt_is_between_slices__is_gone_when_the_batch_is_given_up():
    """No launch of the base ends afterwards: who waits for the adapter to be gone would for ever."""
    others = Arrival(make_request("b", "b", 30, 100, first=3))
    batch = [Arrival(make_request(f"r{model}", model, 100, 2, first=i, ttft_s=5.0)) for i, model in enumerate("xa", 1)]
    leaves = [(0.2161, RemoveModel("x")), (0.2165, Abort("ra"))]
    events = [(0.0, X), (0.0, others), *((0.2, r) for r in batch), *leaves]
    engine = VirtualEngine(events, policy="tropical", models="ab", quota_blocks=300)
    gone: list[str] = []
    engine.loop._on_detached = gone.append
    engine.run()

    assert gone == ["x"]


def test_adapter__asked_for_when_it_is_not_there__is_refused_by_name():
    late = [(0.1, RemoveModel("x")), (0.2, Arrival(make_request("r", "x")))]
    engine = VirtualEngine([(0.0, X), *late]).run()

    (event,) = engine.token_events
    assert (event.finish, event.error) == (FinishReason.ERROR, "model 'x' is not on this unit")


def _event(index, kind):
    at_s, model = 0.004 * index, "axy"[index % 3]
    match kind:
        case "ask":
            return at_s, Arrival(
                make_request(f"r{index}", model, 1 + 7 * index % 60, 1 + index % 9, first=1 + index % 3)
            )
        case "abort":
            return at_s, Abort(f"r{max(0, index - 2)}")
        case "leave":
            return at_s, RemoveModel("x")
        case "quota":
            return at_s, SetQuotas({"a": 60 + index, "y": 40})


@given(
    kinds=st.lists(st.sampled_from(["ask", "ask", "ask", "abort", "quota", "leave"]), max_size=40),
    policy=st.sampled_from(sorted(POLICIES)),
)
@settings(max_examples=60)
def test_adapters__any_events__every_request_ends_once_and_blocks_balance(kinds, policy):
    events = [_event(index, kind) for index, kind in enumerate(kinds)]
    engine = VirtualEngine([(0.0, X), (0.0, Y), *events], policy=policy, settings=CACHING, quota_blocks=100)
    gone: list[str] = []
    engine.loop._on_detached = gone.append
    engine.run()

    assert gone == (["x"] if "leave" in kinds else [])
    asked = {event.request.request_id for _, event in events if isinstance(event, Arrival)}
    ends = [e.request_id for e in engine.token_events if e.finish]
    assert sorted(ends) == sorted(asked)
    report = engine.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == report.total_blocks
