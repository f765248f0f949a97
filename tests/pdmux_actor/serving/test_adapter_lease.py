"""Adapters by lease: behind their base, with its vocabulary, and gone before it."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from lora_adapters import AdapterShape, random_adapter
from scripted_engine import submitted

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Generate


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    sizes = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "num_kv_heads": 2}
    write_random_checkpoint(folder, CheckpointShape(model_type="llama", head_dim=8, **sizes), seed=1)
    return folder


@pytest.fixture
def adapter(make_assignment, checkpoint, tmp_path):
    """An assignment of an adapter of "tiny"."""
    folder = random_adapter(checkpoint, tmp_path / "adapter", AdapterShape(4, ("q_proj", "down_proj")))

    def make(model: str = "sql", quota_blocks: int = 300, **changes):
        return make_assignment(model, quota_blocks, **({"source": str(folder), "base": "tiny"} | changes))

    return make


def changes_of(engine):
    return [c[:2] for c in engine.calls if c[0] in ("add", "remove", "sleep")]


async def test_unit__base_and_adapters_in_one_lease__base_comes_first(
    make_unit, fake_engine, make_lease, adapter, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, adapter("sql"), adapter("legal"), "tiny"))
    await until(lambda: phases(unit) == {"sql": "ready", "legal": "ready", "tiny": "ready"})

    assert changes_of(fake_engine)[0] == ("add", "tiny")
    assert ("quotas", {"sql": 300, "legal": 300, "tiny": 1000}) in fake_engine.calls
    await until(lambda: {s.max_model_len for s in unit.report().models} == {3000, 10000})


async def test_unit__base_leaves__its_adapters_leave_before_it(
    make_unit, fake_engine, make_lease, adapter, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny", adapter()))
    await until(lambda: set(phases(unit).values()) == {"ready"} and len(phases(unit)) == 2)

    unit.apply_lease(make_lease(2, asleep=["tiny"]))
    await until(lambda: phases(unit) == {"tiny": "asleep"} or not phases(unit))

    assert changes_of(fake_engine)[2:] == [("remove", "sql"), ("sleep", "tiny")]


async def test_unit__base_comes_with_other_weights__its_adapters_are_loaded_anew(
    make_unit, fake_engine, make_lease, make_assignment, adapter, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny", adapter()))
    await until(lambda: list(phases(unit).values()) == ["ready", "ready"])

    unit.apply_lease(make_lease(2, make_assignment("tiny", revision="newer"), adapter()))
    await until(lambda: len(changes_of(fake_engine)) == 6)

    assert changes_of(fake_engine)[2:] == [("remove", "sql"), ("remove", "tiny"), ("add", "tiny"), ("add", "sql")]
    await until(lambda: list(phases(unit).values()) == ["ready", "ready"])


@pytest.mark.parametrize("failing_loads", [0, 1])
async def test_unit__base_gets_other_weights_while_an_adapter_comes__has_it_on_the_new_ones(
    make_unit, fake_engine, make_lease, make_assignment, adapter, until, phases, failing_loads
):
    """An engine takes a base's adapters out with it, those that it was just given too."""
    unit = await make_unit(fake_engine, first_retry_s=0.01)
    unit.apply_lease(make_lease(1, "tiny"))
    await until(lambda: phases(unit) == {"tiny": "ready"})
    fake_engine.load_gate.clear()
    unit.apply_lease(make_lease(2, "tiny", adapter()))
    await until(lambda: phases(unit).get("sql") == "loading")
    await asyncio.sleep(0.05)
    unit.apply_lease(make_lease(3, make_assignment("tiny", revision="newer"), adapter()))
    await asyncio.sleep(0.05)
    fake_engine.failing_loads = failing_loads
    fake_engine.load_gate.set()
    await until(lambda: changes_of(fake_engine)[-2:] == [("add", "tiny"), ("add", "sql")])

    came = [("add", "sql")] if failing_loads else [("add", "sql"), ("remove", "sql")]
    assert changes_of(fake_engine)[1:-2] == [*came, ("remove", "tiny")]
    await until(lambda: list(phases(unit).values()) == ["ready", "ready"])


async def test_unit__adapter_leaves_under_load__its_base_serves_on(
    make_unit, fake_engine, make_lease, make_request, adapter, connect, until, phases
):
    unit = await make_unit(fake_engine)
    unit.apply_lease(make_lease(1, "tiny", adapter()))
    await until(lambda: list(phases(unit).values()) == ["ready", "ready"])
    peer = await connect(unit)
    peer.send(Generate(stream=1, request=make_request(model="sql")))
    await submitted(fake_engine, until)

    unit.apply_lease(make_lease(2, "tiny"))

    assert phases(unit) == {"tiny": "ready", "sql": "draining"}


@asynccontextmanager
async def running(kind):
    engine = NativeEngine(EngineSettings(kind=kind, kv_pool_bytes=32 << 20, num_cores=2), start_timeout_s=150)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@pytest.mark.parametrize("kind", ["simulated", "torch_cpu"])
async def test_native_engine__adapter__is_loaded_serves_and_goes_alone_and_with_its_base(
    make_assignment, make_request, adapter, kind
):
    async with running(kind) as engine:
        await engine.add_model(make_assignment("tiny", 300))
        alone = await engine.add_model(adapter("sql", 300))
        assert await engine.set_quotas({"tiny": 100, "sql": 500}) == {"tiny": alone, "sql": alone}

        for model in ("tiny", "sql"):
            engine.submit(make_request(model, model=model, max_tokens=4))
        ended = {}
        async for events in engine.events():
            ended |= {e.request_id: e for e in events if e.finish is not None}
            if len(ended) == 2:
                break
        assert [e.error for e in ended.values()] == [None, None]

        await engine.remove_model("sql")
        await engine.add_model(adapter("sql", 300))
        await engine.remove_model("tiny")
        with pytest.raises(ModelLoadError, match="its base 'tiny' is not on this unit"):
            await engine.add_model(adapter("sql", 300))


async def test_native_engine__adapter_of_an_adapter__is_refused(make_assignment, adapter):
    async with running("torch_cpu") as engine:
        await engine.add_model(make_assignment("tiny", 300))
        await engine.add_model(adapter("sql", 100))
        with pytest.raises(ModelLoadError, match="lease the base with it, and no adapter as a base"):
            await engine.add_model(adapter("deeper", 100, base="sql"))
        with pytest.raises(ModelLoadError, match="does not exist"):
            await engine.add_model(adapter("gone", 100, source="/no/such/adapter"))
        msgspec.json.encode(engine.load_report())
