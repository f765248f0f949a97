import asyncio
import threading
from dataclasses import replace

import pytest
from scripted_engine import LAUNCH_LIMITS, step, submitted

from pdmux_actor.lease import LoadProgress, LoadStage
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import Generate

# ---- lease ----


async def test_unit__before_any_lease__reports_what_it_offers(make_unit, fake_engine):
    unit = await make_unit(fake_engine)

    report = unit.report()

    assert (report.unit_id, report.node, report.pool, report.num_gpus) == ("u1", "n1", "p", 1)
    assert (report.block_bytes, report.total_blocks, report.memory_bytes) == (1024, 1000, 1 << 30)
    assert report.launch_limits == LAUNCH_LIMITS
    assert (report.lease_version, report.models) == (0, ())
    host, _, port = report.endpoint.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


async def test_unit__new_lease__loads_tunes_and_lets_go(
    make_unit, fake_engine, make_lease, make_assignment, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, make_assignment("a", 100), "b", policy="mux"))
    await until(lambda: phases(unit) == {"a": "ready", "b": "ready"})
    assert {s.max_model_len for s in unit.report().models} == {4096}

    unit.apply_lease(make_lease(2, make_assignment("a", 200), "c", policy="prefill_first"))
    await until(lambda: phases(unit) == {"a": "ready", "c": "ready"})

    assert unit.report().lease_version == 2
    changes = [c[:2] for c in fake_engine.calls if c[0] in ("add", "remove")]
    assert set(changes[:2]) == {("add", "a"), ("add", "b")}
    assert changes[2:] == [("remove", "b"), ("add", "c")]  # "c" may need the memory of "b"
    assert ("quotas", {"a": 200}) in fake_engine.calls
    assert {s.model: s.max_model_len for s in unit.report().models} == {"a": 2000, "c": 4096}
    assert [c[1] for c in fake_engine.calls if c[0] == "policy"] == ["mux", "prefill_first"]


async def test_unit__same_or_older_lease__changes_nothing(leased, make_lease, fake_engine, phases):
    unit, _ = leased
    calls = list(fake_engine.calls)

    unit.apply_lease(make_lease(1))
    unit.apply_lease(make_lease(0, "other"))
    await asyncio.sleep(0.01)

    assert fake_engine.calls == calls
    assert phases(unit) == {"tiny": "ready"}


async def test_unit__lease_changes_while_loading__newest_wins(
    make_unit, fake_engine, make_lease, make_assignment, until, phases
):
    unit = await make_unit(fake_engine)
    fake_engine.load_gate.clear()
    unit.apply_lease(make_lease(1, make_assignment("a", 100), "b"))
    unit.apply_lease(make_lease(2, make_assignment("a", 300)))
    assert phases(unit) == {"a": "loading", "b": "loading"}

    fake_engine.load_gate.set()
    await until(lambda: phases(unit) == {"a": "ready"})

    assert ("quotas", {"a": 300}) in fake_engine.calls or ("add", "a", 300) in fake_engine.calls


async def test_unit__model_leaves_under_load__drains_then_goes(
    leased, make_request, make_lease, fake_engine, until, phases
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2))
    assert phases(unit) == {"tiny": "draining"}
    peer.send(Generate(stream=2, request=make_request()))
    await peer.until_finished(2)
    assert peer.deltas[2][0].retryable
    assert ("remove", "tiny") not in fake_engine.calls

    fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))
    await until(lambda: phases(unit) == {})
    await peer.until_finished(1)
    assert peer.deltas[1][-1].finish is FinishReason.LENGTH
    assert ("remove", "tiny") in fake_engine.calls


async def test_unit__lease_names_a_model_while_another_leaves__is_loaded_at_once(
    leased, fake_engine, make_lease, make_request, until, phases
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2, "b"))

    await until(lambda: phases(unit) == {"tiny": "draining", "b": "ready"})


async def test_unit__model_is_ready_or_gone__is_told_at_once(leased, fake_engine, make_lease, phases):
    unit, _ = leased
    await unit.news_within(0.01)  # of the model that it has
    async with asyncio.timeout(10.0):
        unit.apply_lease(make_lease(2))
        await unit.news_within(3600.0)
        assert phases(unit) == {}
        unit.apply_lease(make_lease(3, "b"))
        await unit.news_within(3600.0)
        assert phases(unit) == {"b": "ready"}


async def test_unit__load_fails_while_models_leave__is_tried_again_when_they_are_gone(
    make_unit, fake_engine, make_lease, make_request, connect, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny", "b"))
    await until(lambda: phases(unit) == {"tiny": "ready", "b": "ready"})
    peer = await connect(unit)
    peer.send(Generate(stream=1, request=make_request()))
    (request_id,) = await submitted(fake_engine, until)

    fake_engine.failing_loads = 1
    unit.apply_lease(make_lease(2, "b", "c"))  # "b" stays
    await until(lambda: fake_engine.failing_loads == 0)
    await asyncio.sleep(0.01)
    assert phases(unit) == {"tiny": "draining", "b": "ready", "c": "loading"}
    unit.apply_lease(make_lease(3, "c"))  # "b" leaves, and waits for nobody
    await until(lambda: phases(unit) == {"tiny": "draining", "c": "loading"}, 10.0)
    fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))

    await until(lambda: phases(unit) == {"c": "ready"}, 10.0)


@pytest.mark.parametrize(("unit_s", "lease_s"), [(0.05, None), (0.05, 600.0), (600.0, 0.05)])
async def test_unit__drain_takes_too_long__streams_go_on_elsewhere(
    make_unit, fake_engine, make_lease, make_request, connect, until, phases, unit_s, lease_s
):
    unit = await make_unit(fake_engine, drain_timeout_s=unit_s)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    peer = await connect(unit)
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)

    unit.apply_lease(replace(make_lease(2), finish_s={} if lease_s is None else {"tiny": lease_s}))
    await peer.until_finished(1)

    assert (peer.deltas[1][-1].finish, peer.deltas[1][-1].retryable) == (FinishReason.ERROR, True)
    await until(lambda: phases(unit) == {})


async def test_unit__model_wanted_again_while_draining__stays(
    leased, make_request, make_lease, fake_engine, until, phases
):
    unit, peer = leased
    peer.send(Generate(stream=1, request=make_request()))
    await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2))
    await asyncio.sleep(0.01)
    unit.apply_lease(make_lease(3, "tiny"))
    assert phases(unit) == {"tiny": "ready"}
    peer.send(Generate(stream=2, request=make_request("second")))

    for request_id in await submitted(fake_engine, until, 2):
        fake_engine.emit(step(request_id, "a", FinishReason.LENGTH))
    await peer.until_finished(1, 2)
    assert {peer.deltas[i][-1].finish for i in (1, 2)} == {FinishReason.LENGTH}
    assert ("remove", "tiny") not in fake_engine.calls


async def test_unit__model_with_new_weights__is_replaced(leased, make_assignment, make_lease, fake_engine, until):
    unit, _ = leased

    unit.apply_lease(make_lease(2, make_assignment("tiny", max_model_len=128)))
    await until(lambda: [s.max_model_len for s in unit.report().models if s.phase == "ready"] == [128])

    assert [c[0] for c in fake_engine.calls if c[0] in ("add", "remove")] == ["add", "remove", "add"]


async def test_unit__load_fails__says_why_and_tries_again(make_unit, fake_engine, make_lease, until, phases):
    fake_engine.failing_loads = 2
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "failed"})
    (status,) = unit.report().models
    assert status.error == "model 'tiny' does not load: broken; mend it"
    assert unit.is_healthy()

    await until(lambda: phases(unit) == {"tiny": "ready"})

    assert unit.report().models[0].error is None


async def test_unit__checkpoint_without_tokenizer__fails_with_reason(
    make_unit, fake_engine, make_lease, make_assignment, until, phases, tmp_path
):
    (tmp_path / "tokenizer.json").write_text("{}")
    unit = await make_unit(fake_engine)

    unit.apply_lease(make_lease(1, make_assignment("bad", source=str(tmp_path))))
    await until(lambda: phases(unit) == {"bad": "failed"})

    assert "no usable tokenizer" in unit.report().models[0].error
    unit.apply_lease(make_lease(2))
    await until(lambda: phases(unit) == {})


@pytest.mark.parametrize("source", ["~nobody-of-this-node/model", "/models/a\0b"])
async def test_unit__folder_that_cannot_be_on_this_node__fails_that_model_and_no_other(
    make_unit, fake_engine, make_lease, make_assignment, until, phases, source
):
    unit = await make_unit(fake_engine)

    unit.apply_lease(make_lease(1, "tiny", make_assignment("bad", source=source)))
    await until(lambda: phases(unit) == {"tiny": "ready", "bad": "failed"})

    assert unit.is_healthy()


async def test_unit__bug_while_following_the_lease__unit_is_ill(make_unit, fake_engine, make_lease, until):
    def broken(assignment, on_download):
        raise RuntimeError("a bug")

    unit = await make_unit(fake_engine, load_vocabulary=broken)
    unit.apply_lease(make_lease(1, "tiny"))

    await until(lambda: not unit.is_healthy())


async def test_unit__weights_on_their_way__report_says_how_far(make_unit, fake_engine, make_lease, until, phases):
    downloading, downloaded = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load_vocabulary(assignment, on_download):
        on_download(1, 4)
        loop.call_soon_threadsafe(downloading.set)
        assert downloaded.wait(10)
        return object()

    fake_engine.load_gate.clear()
    unit = await make_unit(fake_engine, load_vocabulary=load_vocabulary)
    unit.apply_lease(make_lease(1, "tiny"))
    await downloading.wait()
    (download,) = [s.progress for s in unit.report().models]
    downloaded.set()
    fake_engine.reading["tiny"] = LoadProgress(stage=LoadStage.READING, done_bytes=3, total_bytes=4)
    await until(lambda: unit.report().models[0].progress == fake_engine.reading["tiny"])
    fake_engine.load_gate.set()
    await until(lambda: phases(unit) == {"tiny": "ready"})

    assert download == LoadProgress(stage=LoadStage.DOWNLOADING, done_bytes=1, total_bytes=4)
    assert unit.report().models[0].progress is None


# ---- KV pool ----


async def test_unit__lease_sizes_the_pool__before_its_first_model_and_once(
    make_unit, fake_engine, make_lease, until, phases
):
    unit = await make_unit(fake_engine)

    unit.apply_lease(replace(make_lease(1, "a", "b"), pool_blocks=700))
    await until(lambda: phases(unit) == {"a": "ready", "b": "ready"})

    assert next(c for c in fake_engine.calls if c[0] in ("pool", "add")) == ("pool", 700)
    assert len([c for c in fake_engine.calls if c[0] == "pool"]) == 1
    assert unit.report().total_blocks == 700


async def test_unit__lease_changes_the_size_of_the_pool__it_waits_until_no_model_is_there(
    make_unit, fake_engine, make_lease, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(replace(make_lease(1, "a"), pool_blocks=700))
    await until(lambda: phases(unit) == {"a": "ready"})

    unit.apply_lease(replace(make_lease(2, "a", "b"), pool_blocks=300))
    await until(lambda: phases(unit) == {"a": "ready", "b": "ready"})
    assert unit.report().total_blocks == 700

    unit.apply_lease(replace(make_lease(3, "c"), pool_blocks=300))
    await until(lambda: phases(unit) == {"c": "ready"})
    sizes_and_models = [c[:2] for c in fake_engine.calls if c[0] in ("pool", "add", "remove")]
    assert sizes_and_models[-2:] == [("pool", 300), ("add", "c")]
    assert unit.report().total_blocks == 300


async def test_unit__model_fails_to_load__does_not_keep_the_pool_from_its_next_size(
    make_unit, fake_engine, make_lease, until, phases
):
    unit = await make_unit(fake_engine)
    fake_engine.failing_loads = 1
    unit.apply_lease(replace(make_lease(1, "a"), pool_blocks=700))
    await until(lambda: phases(unit) == {"a": "failed"})

    unit.apply_lease(replace(make_lease(2, "b"), pool_blocks=300))
    await until(lambda: phases(unit) == {"b": "ready"})

    assert unit.report().total_blocks == 300


async def test_unit__request_made_for_other_weights__is_given_back_and_not_computed(
    make_unit, fake_engine, make_lease, make_assignment, make_request, until, phases
):
    """Its tokens may be those of another tokenizer."""
    unit = await make_unit(fake_engine)
    old, new = make_assignment("a", max_model_len=64), make_assignment("a", dtype="float16")
    adapter = make_assignment("sql", revision="v2", base="a")
    unit.apply_lease(make_lease(1, old, adapter))
    await until(lambda: set(phases(unit).values()) == {"ready"} and len(phases(unit)) == 2)
    report = unit.report()
    name_of = {s.model: report.weights_of(s) for s in report.models}
    assert name_of == {"a": old.origin.name(), "sql": adapter.origin.name(old.origin)}

    sent = []
    for stream, (model, weights) in enumerate(
        [("a", new.origin.name()), ("sql", adapter.origin.name(new.origin)), ("sql", adapter.origin.name())]
    ):
        request = make_request(model=model, weights=weights)
        assert unit.open(Generate(stream=stream, request=request), sent.append) is None
    assert [(d.finish, d.retryable) for d in sent] == [(FinishReason.ERROR, True)] * 3
    assert "other weights" in sent[0].error

    for stream, (model, weights) in enumerate([*name_of.items(), ("a", ())], start=3):
        request = make_request(model=model, weights=weights)
        assert unit.open(Generate(stream=stream, request=request), sent.append) is not None
    assert len(sent) == 3
