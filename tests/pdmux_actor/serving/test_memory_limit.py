"""An engine whose process gets no more memory: the model that does not fit is refused, the one that serves goes on."""

from pathlib import Path

import psutil
import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings

LARGE = CheckpointShape(
    model_type="llama",
    num_layers=6,
    hidden_size=512,
    intermediate_size=1408,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
)
_ROOM_BYTES = 48 << 20  # less than its weights take, and enough for what serves


async def test_native_engine__address_space_ends_while_a_model_loads__says_so_and_serves_on(
    demo_checkpoints, make_assignment, make_request, tmp_path: Path
) -> None:
    write_random_checkpoint(tmp_path / "large", LARGE, seed=1)
    settings = EngineSettings(kind="torch_cpu", kv_pool_bytes=64 << 20, num_cores=1)
    engine = NativeEngine(settings, start_timeout_s=150)
    await engine.start()

    async def says(request_id: str) -> list[int]:
        engine.submit(make_request(request_id, model="demo-llama", max_tokens=8, sampling={"ignore_eos": True}))
        tokens: list[int] = []
        async for events in engine.events():
            tokens += [token.token_id for event in events for token in event.tokens]
            if any(event.finish is not None for event in events):
                return tokens
        raise AssertionError("it ended")

    try:
        await engine.add_model(make_assignment("demo-llama", source=str(demo_checkpoints["demo-llama"])))
        before = await says("before")
        process = psutil.Process(engine.pid)
        most_bytes = process.memory_info().vms + _ROOM_BYTES
        process.rlimit(psutil.RLIMIT_AS, (most_bytes, most_bytes))

        with pytest.raises(ModelLoadError, match=r"the system gives no more memory.*use a smaller model"):
            await engine.add_model(make_assignment("large", source=str(tmp_path / "large")))

        assert await says("after") == before
    finally:
        await engine.stop()
