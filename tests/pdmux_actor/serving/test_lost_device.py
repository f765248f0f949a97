"""An engine process whose GPU is lost under its requests: each is answered once, and another process serves."""

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from interpreted_checkpoints import write_interpreted_checkpoint

from pdmux_actor.backends import native
from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.engine_watch import WatchSettings
from pdmux_actor.serving.frames import Credit, Generate

PROGRAM = Path(__file__).parents[1] / "cuda" / "losing_engine.py"
NUM_REQUESTS = 3
MAX_TOKENS = 20
AMPLE_LAUNCHES = 10**6


async def keep_talking(peer) -> None:
    """A gateway that says nothing for long is given up, and one without credit is told nothing."""
    while True:
        peer.send(*(Credit(stream=stream, deltas=100) for stream in range(NUM_REQUESTS)))
        await asyncio.sleep(0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_interpreted_checkpoint(tmp_path, "llama", heads=4, seed=0)


@pytest.fixture
def serve(folder, make_unit, make_assignment, make_lease, make_request, connect, until, phases, monkeypatch):
    """Asks a unit whose device is there for so many launches; returns its engine, the unit and what it answered."""

    async def served(num_launches):
        monkeypatch.setattr(native, "own_program", lambda _: (sys.executable, str(PROGRAM), str(num_launches)))
        settings = EngineSettings(kind="torch_cuda", kv_pool_bytes=4 << 20, block_bytes=512)
        engine = NativeEngine(settings, watch=WatchSettings(suspect_s=60.0, kill_s=90.0))
        unit = await make_unit(engine)
        unit.apply_lease(make_lease(1, make_assignment("tiny", quota_blocks=4000, source=str(folder))))
        await until(lambda: phases(unit) == {"tiny": "ready"}, timeout_s=120)
        peer = await connect(unit)
        for stream in range(NUM_REQUESTS):
            request = make_request(f"r{stream}", max_tokens=MAX_TOKENS, sampling={"ignore_eos": True})
            peer.send(Generate(stream=stream, request=request))
        talking = asyncio.create_task(keep_talking(peer))
        await peer.until_finished(*range(NUM_REQUESTS))
        talking.cancel()
        return engine, unit, peer

    return served


async def test_unit__device_is_lost__every_request_ends_once_and_the_next_process_serves_them(serve) -> None:
    engine, unit, peer = await serve(4)

    for stream in range(NUM_REQUESTS):
        ends = [delta for delta in peer.deltas[stream] if delta.finish]
        assert [(end.finish, end.retryable) for end in ends] == [(FinishReason.ERROR, True)]
    assert not engine.is_alive()
    assert not unit.is_healthy()  # for which Serve starts another
    assert "illegal memory access" in engine._last_words()
    begun = [peer.token_ids(stream) for stream in range(NUM_REQUESTS)]
    assert any(begun)

    _, unit, peer = await serve(AMPLE_LAUNCHES)

    for stream in range(NUM_REQUESTS):
        ends = [delta.finish for delta in peer.deltas[stream] if delta.finish]
        assert ends == [FinishReason.LENGTH]
        assert peer.token_ids(stream)[: len(begun[stream])] == begun[stream]
        assert len(peer.token_ids(stream)) == MAX_TOKENS
    assert unit.is_healthy()
