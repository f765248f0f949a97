"""Models that sleep: what a unit does with them, on an engine whose steps the test decides."""

import os

from scripted_engine import step, submitted

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Generate


async def test_unit__lease_lets_a_model_sleep__it_is_asleep_and_wakes_with_its_vocabulary(
    make_unit, fake_engine, make_lease, until, phases
):
    fake_engine.host_bytes = 2
    read = []

    def load_vocabulary(assignment, on_download):
        read.append(assignment.model)
        return object()

    unit = await make_unit(fake_engine, load_vocabulary=load_vocabulary)
    unit.apply_lease(make_lease(1, "a"))
    await until(lambda: phases(unit) == {"a": "ready"})

    unit.apply_lease(make_lease(2, "b", asleep=["a"]))
    await until(lambda: phases(unit) == {"a": "asleep", "b": "ready"})
    (asleep,) = [s.asleep for s in unit.report().models if s.model == "a"]
    assert (asleep.host_bytes, asleep.wake_s) == (1, 0.1)

    unit.apply_lease(make_lease(3, "a", asleep=["b"]))
    await until(lambda: phases(unit) == {"a": "ready", "b": "asleep"})

    changes = [c[:2] for c in fake_engine.calls if c[0] in ("add", "wake", "sleep", "remove")]
    assert changes == [("add", "a"), ("sleep", "a"), ("add", "b"), ("sleep", "b"), ("wake", "a")]
    assert read == ["a", "b"]


async def test_unit__tokenizer_changed_while_a_model_slept__is_read_again(
    make_unit, fake_engine, make_lease, make_assignment, until, phases, checkpoint, tmp_path
):
    fake_engine.host_bytes = 1
    (tmp_path / "config.json").write_text("{}")
    read = []
    unit = await make_unit(fake_engine, load_vocabulary=lambda a, on_download: read.append(a.model) or object())
    here = make_assignment("a", source=str(tmp_path))
    for version, lease in enumerate(((here,), (), (here,)), 1):
        unit.apply_lease(make_lease(version, *lease, asleep=[here]))
        await until(lambda ready=bool(lease): phases(unit) == {"a": "ready" if ready else "asleep"})
        os.utime(tmp_path / "config.json", (version, version))

    assert read == ["a", "a"]


async def test_unit__lease_lets_a_busy_model_sleep__its_requests_end_first(
    leased, make_request, make_lease, fake_engine, until, phases
):
    fake_engine.host_bytes = 1
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2, asleep=["tiny"]))
    assert phases(unit) == {"tiny": "draining"}
    peer.send(Generate(stream=2, request=make_request()))
    await peer.until_finished(2)
    assert peer.deltas[2][0].retryable
    assert ("sleep", "tiny") not in fake_engine.calls

    fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))
    await until(lambda: phases(unit) == {"tiny": "asleep"})
    await peer.until_finished(1)
    assert peer.deltas[1][-1].finish is FinishReason.LENGTH


async def test_unit__lease_lets_a_model_sleep_that_never_ends__its_streams_go_on_elsewhere(
    make_unit, fake_engine, make_lease, make_request, connect, until, phases
):
    fake_engine.host_bytes = 1
    unit = await make_unit(fake_engine, drain_timeout_s=0.05)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    peer = await connect(unit)
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2, asleep=["tiny"]))
    await peer.until_finished(1)

    assert (peer.deltas[1][-1].finish, peer.deltas[1][-1].retryable) == (FinishReason.ERROR, True)
    await until(lambda: phases(unit) == {"tiny": "asleep"})


async def test_unit__host_memory_is_full__model_is_absent(make_unit, fake_engine, make_lease, until, phases):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "a"))
    await until(lambda: phases(unit) == {"a": "ready"})

    unit.apply_lease(make_lease(2, asleep=["a"]))
    await until(lambda: phases(unit) == {})
    unit.apply_lease(make_lease(3, "a"))
    await until(lambda: phases(unit) == {"a": "ready"})

    assert [c[:2] for c in fake_engine.calls if c[0] in ("add", "wake")] == [("add", "a"), ("add", "a")]


async def test_unit__lease_names_a_sleeper_no_more_or_with_other_weights__it_is_forgotten(
    make_unit, fake_engine, make_lease, make_assignment, until, phases
):
    fake_engine.host_bytes = 3
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "a", "b", "c"))
    await until(lambda: phases(unit) == {"a": "ready", "b": "ready", "c": "ready"})
    unit.apply_lease(make_lease(2, asleep=["a", "b", "c"]))
    await until(lambda: phases(unit) == {"a": "asleep", "b": "asleep", "c": "asleep"})

    unit.apply_lease(make_lease(3, asleep=["a", make_assignment("b", dtype="float16")]))

    await until(lambda: phases(unit) == {"a": "asleep"})
    assert {c[1] for c in fake_engine.calls if c[0] == "remove"} == {"b", "c"}
