"""The dispatcher that decides inside SGLang's loop, without SGLang."""

from dataclasses import replace

import pytest
from model_shapes import LLAMA_3_8B

from pdmux_actor.backends.sglang.dispatch import SglangDispatch
from pdmux_actor.backends.sglang.launch import Launch
from pdmux_actor.backends.sglang.link import FromPlugin, PluginLoad
from pdmux_actor.backends.sglang.load import load_report
from pdmux_actor.backends.sglang.snapshot import Directive, RanSlice, SeenBatch, SeenSequence, Snapshot
from pdmux_actor.backends.sglang.streams import StreamCounts
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import StepPhase
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.decision import DecisionKind
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.serving.frames import FrameReader, framed
from profiler.gpus.h200 import DEVICE as H200
from profiler.roofline import RooflineLatency

SPEC = replace(LLAMA_3_8B, max_position_embeddings=131072)
INFO = ModelInfo(
    model="m",
    spec=SPEC,
    geometry=KvGeometry(blocks_per_row=1, tokens_per_row=1),
    eos_token_ids=frozenset(),
    max_model_len=131072,
)
PARTITIONS = ((112, 20), (96, 36), (72, 60), (56, 76), (32, 100), (16, 116))
PREFILL_ONLY, DECODE_ONLY = 0, 7


def dispatch_of(policy="muxwise", **settings):
    return SglangDispatch(
        policy=policy,
        settings=SchedulerSettings(max_batch_tokens=16384, **settings),
        device=H200,
        partitions=PARTITIONS,
        info=INFO,
        latency=RooflineLatency(H200),
    )


def sequence(name, known, *, prompt=None, arrival_s=0.0, ttft_s=10.0, tbt_s=0.1, cached=0):
    return SeenSequence(name, arrival_s, prompt or known, known, cached, ttft_s, tbt_s)


def running(count, tbt_s=0.1, context=2000, name="r"):
    return tuple(sequence(f"{name}{i}", context, prompt=context - 1, tbt_s=tbt_s) for i in range(count))


def snapshot(**what):
    empty = {
        "now_s": 1.0,
        "waiting": (),
        "running": (),
        "batch": None,
        "suspended": None,
        "batch_ends": False,
        "slices_on_lane": 0,
        "slice_ran": None,
        "slices_s": (),
        "decode_s": None,
        "free_tokens": 1_000_000,
        "used_tokens": 0,
    }
    return Snapshot(**(empty | what))


def batch(tokens, next_layer=4, batch_id=1, **targets):
    return SeenBatch(batch_id, next_layer, (sequence(f"p{batch_id}", tokens, **targets),))


def test_decide__only_prompts__prefill_has_the_device_in_slices():
    directive = dispatch_of().decide(snapshot(waiting=(sequence("a", 16000),)))

    assert directive.start
    assert not directive.decode
    assert directive.group == PREFILL_ONLY
    assert 0 < directive.layers < SPEC.num_layers


def test_decide__only_decodes__decode_has_the_device():
    assert dispatch_of().decide(snapshot(running=running(8))) == Directive(group=DECODE_ONLY, decode=True)


@pytest.mark.parametrize(
    ("policy", "loose", "unattainable"), [("muxwise", {20}, {116}), ("mux", {36, 60, 76}, {36, 60, 76})]
)
def test_decide__tighter_targets__decode_has_more_sms(policy, loose, unattainable):
    """At a loose target `muxwise` gives the least share; `mux` what slows 64 sequences down least for a prompt.

    So does `mux` at a target that no share can meet.
    """
    shares = []
    for tbt_s in (1.0, 0.014, 1e-5):
        dispatch = dispatch_of(policy)
        directive = dispatch.decide(snapshot(running=running(64, tbt_s), batch=batch(16000)))
        assert directive.decode
        assert directive.layers > 0
        shares.append(dispatch.groups[directive.group][1])

    assert shares[0] in loose
    assert shares[0] <= shares[1]
    assert shares[1] in (100, 116)
    assert shares[2] in unattainable


def test_decide__slices_beside_decode__last_about_as_long_as_the_step():
    few = dispatch_of().decide(snapshot(running=running(1), batch=batch(16000)))
    many = dispatch_of().decide(snapshot(running=running(64, context=30000), batch=batch(16000)))

    assert few.layers < many.layers  # N_PL = ceil(T_d N_T / T_P)


def test_decide__two_slices_on_the_lane__holds_the_prefill_while_decode_goes_on():
    dispatch = dispatch_of()
    dispatch.decide(snapshot(running=running(4), batch=batch(16000, 1)))
    dispatch.decide(snapshot(running=running(4), batch=batch(16000, 2), slices_on_lane=1))

    directive = dispatch.decide(snapshot(running=running(4), batch=batch(16000, 3), slices_on_lane=2))

    assert directive.decode
    assert directive.layers == 0


def test_decide__one_slice_on_the_lane__another_queues_up_behind_it():
    directive = dispatch_of().decide(snapshot(running=running(4), batch=batch(16000), slices_on_lane=1))

    assert directive.layers > 0


def test_decide__last_slice_on_the_lane__partition_stays():
    dispatch = dispatch_of()
    before = dispatch.decide(snapshot(running=running(64, 1e-5), batch=batch(16000)))
    after = dispatch.decide(
        snapshot(running=running(64, 1.0), batch=batch(16000, 32), batch_ends=True, slices_on_lane=1)
    )

    assert after.group == before.group
    assert after.layers == 0


def test_decide__targets_far_looser_than_before__decode_gives_sms_back():
    dispatch = dispatch_of()
    wide = dispatch.decide(snapshot(running=running(64, 1e-5), batch=batch(16000)))
    assert dispatch.groups[wide.group] == (16, 116)

    narrow = dispatch.decide(snapshot(running=running(64, 1.0, name="other"), batch=batch(16000)))

    assert dispatch.groups[narrow.group] == (112, 20)
    assert dispatch.repartitions_total == 2


def test_decide__urgent_prompt_behind_a_patient_batch__preempts_it_once():
    dispatch = dispatch_of()
    patient = batch(100_000, 1, ttft_s=1000.0)
    urgent = sequence("urgent", 200, arrival_s=0.9, ttft_s=0.3)

    first = dispatch.decide(snapshot(waiting=(urgent,), batch=patient))
    nested = dispatch.decide(
        snapshot(waiting=(urgent,), batch=batch(50_000, 1, batch_id=2, ttft_s=1000.0), suspended=patient)
    )

    assert first.start
    assert not nested.start
    assert dispatch.preemptions_total == 1


def test_decide__policy_prefill_first__decode_waits_for_the_prefill():
    directive = dispatch_of("prefill_first").decide(snapshot(running=running(4), waiting=(sequence("a", 500),)))

    assert directive == Directive(group=PREFILL_ONLY, layers=SPEC.num_layers, start=True)


def test_decide__kv_is_full__nothing_is_admitted_while_something_runs():
    directive = dispatch_of().decide(snapshot(running=running(4), waiting=(sequence("a", 500),), free_tokens=100))

    assert not directive.start
    assert directive.decode


def test_decide__nothing_runs_and_kv_seems_full__sglang_is_asked_all_the_same():
    assert dispatch_of().decide(snapshot(waiting=(sequence("a", 500),), free_tokens=100)).start


def test_decide__mux__prompts_go_by_deadline_and_never_fused():
    for tbt_s in (1.0, float("inf")):
        directive = dispatch_of("mux").decide(snapshot(running=running(4, tbt_s), waiting=(sequence("a", 100),)))
        assert directive.by_deadline
        assert directive.start


def test_learning__measured_steps__change_predictions_and_the_guard():
    dispatch, seen = dispatch_of(), running(16)
    contexts = [s.known_tokens for s in seen]

    def predicted_s(beside=()):
        return dispatch.predictor.decode_s("m", SPEC, contexts, 132, beside=beside)

    modelled_s = predicted_s()
    for i in range(30):
        dispatch.decide(snapshot(running=seen, now_s=float(i), decode_s=None if i == 0 else 3 * modelled_s))
    assert predicted_s() == pytest.approx(3 * modelled_s, rel=0.01)

    for i in range(30, 60):
        measured_s = 9 * modelled_s if i > 30 else None
        dispatch.decide(
            snapshot(running=seen, batch=batch(16000), now_s=float(i), decode_s=measured_s, slices_on_lane=1)
        )
    assert dispatch.predictor.guard.cells_moved > 0


def test_learning__slices__are_logged_with_what_they_took():
    dispatch = dispatch_of()
    dispatch.decide(snapshot(waiting=(sequence("a", 4000),)))
    ran = RanSlice(SeenBatch(1, 0, (sequence("a", 4000),)), 0, 8)
    dispatch.decide(snapshot(batch=SeenBatch(1, 8, ran.batch.sequences), slice_ran=ran, slices_s=(0.02,)))

    logged = [d for d in dispatch.log if d.kind is DecisionKind.PREFILL]
    assert [(d.first_layer, d.last_layer, d.chunks) for d in logged] == [(0, 8, ((0, 4000),))]
    assert logged[0].measured_s == pytest.approx(0.02)


def test_mirror__request_that_is_gone__is_forgotten():
    dispatch = dispatch_of()
    dispatch.decide(snapshot(running=running(3)))
    dispatch.decide(snapshot(running=running(1)))

    assert list(dispatch._mirror._sequences) == ["r0"]


def test_measured_steps__steps_slower_than_the_model__reach_the_load_report():
    """As the plugin tells them: what plans learn of units (deploy/control/step_learning.py)."""
    dispatch, seen = dispatch_of(), running(8)
    modelled_s = dispatch.predictor.decode_s("m", SPEC, [2000] * 8, H200.num_sms)
    for i in range(40):
        dispatch.decide(snapshot(running=seen, now_s=float(i), decode_s=None if i == 0 else 1.3 * modelled_s))
    told = PluginLoad(
        **dict.fromkeys(("running", "waiting", "used_tokens", "cached_tokens", "prefill_sms", "decode_sms"), 0),
        **dict.fromkeys(("steps_total", "repartitions_total", "preemptions_total", "waiting_tokens"), 0),
        **dict.fromkeys(("decode_predicted_s", "decode_achieved_s", "prefill_base_s", "prefill_s_per_token"), 0.0),
        guard_cells_moved_total=0,
        steps=dispatch.measured_steps(),
    )

    (heard,) = FrameReader(FromPlugin).feed(framed(told))
    report = load_report(heard, Launch(info=INFO, arguments={}, unmultiplexed=None), 512, 1024, StreamCounts())

    (steps,) = report.steps
    assert (steps.model, steps.phase, steps.quarters) == ("m", StepPhase.DECODE, 4)
    assert steps.launches >= 30
    assert steps.measured_s / steps.modelled_s == pytest.approx(1.3, rel=0.01)
