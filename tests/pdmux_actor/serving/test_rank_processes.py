"""An engine process of several ranks, as its actor sees it."""

import os
import signal

import psutil
import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.messages import FinishReason
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.engine_watch import WatchSettings
from pdmux_actor.serving.frames import Generate

SHAPE = CheckpointShape(
    model_type="llama", num_layers=2, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    write_random_checkpoint(folder, SHAPE, seed=0)
    return folder


def settings(num_gpus):
    return EngineSettings(kind="torch_cpu", kv_pool_bytes=16 << 20, dtype="float32", num_gpus=num_gpus)


def ranks_of(engine):
    return psutil.Process(engine.pid).children(recursive=True)


def is_running(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def serving(make_unit, make_lease, make_assignment, until, phases, connect, folder):
    async def start(engine):
        unit = await make_unit(engine)
        unit.apply_lease(make_lease(1, make_assignment("tiny", quota_blocks=2000, source=str(folder))))
        await until(lambda: phases(unit) == {"tiny": "ready"}, timeout_s=120)
        return unit, await connect(unit)

    return start


async def test_unit_of_two_ranks__stops__answers_before_and_leaves_no_process(serving, make_request, until):
    engine = NativeEngine(settings(2))
    unit, peer = await serving(engine)
    (rank,) = ranks_of(engine)
    request = make_request("r", max_tokens=12, sampling={"ignore_eos": True}, prompt_token_ids=tuple(range(5, 60)))
    peer.send(Generate(stream=1, request=request))
    await peer.until_finished(1)

    await unit.stop()

    assert len(peer.token_ids(1)) == 12
    assert peer.deltas[1][-1].finish is FinishReason.LENGTH
    await until(lambda: not is_running(rank), timeout_s=30)


async def test_unit_of_two_ranks__one_is_killed__streams_may_go_on_elsewhere_and_nothing_is_left(
    serving, make_request, until
):
    engine = NativeEngine(settings(2))
    unit, peer = await serving(engine)
    (rank,) = ranks_of(engine)
    peer.send(Generate(stream=1, request=make_request("r", max_tokens=3000, sampling={"ignore_eos": True})))
    while len(peer.deltas.get(1, ())) < 3:
        assert await peer.next() is not None

    os.kill(rank.pid, signal.SIGKILL)
    await until(lambda: not unit.is_healthy(), timeout_s=30)

    assert not psutil.pid_exists(engine.pid)
    assert unit.report().is_leaving
    await peer.until_finished(1)
    last = peer.deltas[1][-1]
    assert (last.finish, last.retryable, last.engine_died) == (FinishReason.ERROR, True, True)


async def test_unit_of_two_ranks__one_stands_still__is_found_as_a_late_launch_and_all_end(serving, make_request, until):
    engine = NativeEngine(settings(2), watch=WatchSettings(suspect_s=0.5, kill_s=2.0, late_factor=1.0))
    unit, peer = await serving(engine)
    (rank,) = ranks_of(engine)
    peer.send(Generate(stream=1, request=make_request("r", max_tokens=3000, sampling={"ignore_eos": True})))
    while len(peer.deltas.get(1, ())) < 3:
        assert await peer.next() is not None

    os.kill(rank.pid, signal.SIGSTOP)
    await until(lambda: not unit.is_healthy(), timeout_s=60)

    await peer.until_finished(1)
    assert peer.deltas[1][-1].retryable
    await until(lambda: not is_running(rank), timeout_s=30)
