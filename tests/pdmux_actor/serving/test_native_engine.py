import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import msgspec
import psutil
import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import EngineDied, EngineStartFailed, LaunchFailed, ModelLoadError
from pdmux_actor.lease import LoadProgress, LoadStage
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.commands import EngineSettings, GraphsCaptured, WeightsRead
from pdmux_actor.serving.engine_watch import WatchSettings
from profiler.probe import LaunchShape


@asynccontextmanager
async def running(settings, **watch):
    engine = NativeEngine(settings, start_timeout_s=150, watch=WatchSettings(**watch))
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()


async def answers_of(engine, request_ids):
    """Tokens and finish of every request, once all have finished."""
    tokens = dict.fromkeys(request_ids, 0)
    finishes = {}
    async for events in engine.events():
        for event in events:
            tokens[event.request_id] += len(event.tokens)
            if event.finish is not None:
                assert event.request_id not in finishes
                finishes[event.request_id] = event
        if len(finishes) == len(tokens):
            break
    return tokens, finishes


def quotas_of(engine):
    report = engine.load_report()
    return {} if report is None else {load.model: load.quota_blocks for load in report.models}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_native_engine__model_is_captured__says_how_many_graphs_once_its_bytes_are_there(engine_settings):
    engine = NativeEngine(engine_settings, start_timeout_s=150)
    engine._take(WeightsRead("m", 90, 100))

    engine._take(GraphsCaptured("m", 3, 8))

    progress = engine.load_progress("m")
    assert progress == LoadProgress(
        stage=LoadStage.CAPTURING, done_bytes=100, total_bytes=100, done_graphs=3, total_graphs=8
    )
    assert (progress.share, progress.bytes_share) == (3 / 8, 1.0)


async def test_native_engine__its_process__lets_openmp_threads_wait_awake_as_the_environment_says(
    engine_settings, monkeypatch
):
    async with running(engine_settings) as (engine, _):
        assert int(psutil.Process(engine.pid).environ()["GOMP_SPINCOUNT"]) > 1000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    async with running(engine_settings) as (engine, _):
        assert psutil.Process(engine.pid).environ()["GOMP_SPINCOUNT"] == "7"


async def test_native_engine__all_commands__every_request_ends_once(
    engine_settings, make_assignment, make_request, until
):
    async with running(engine_settings) as (engine, capacity):
        assert capacity.total_blocks == engine_settings.kv_pool_bytes // engine_settings.block_bytes
        assert capacity.block_bytes == engine_settings.block_bytes
        assert capacity.memory_bytes > 0

        assert await engine.add_model(make_assignment("a")) == 4096
        assert await engine.add_model(make_assignment("b", max_model_len=64)) == 64
        assert await engine.set_quotas({"a": 500, "absent": 9}) == {"a": 4096}
        # 4 blocks a row; a block of 16 KiB holds K and V of 128 tokens of 16 float32
        assert await engine.set_quotas({"b": 4 * 10**6}) == {"b": 64}
        assert await engine.set_quotas({"b": 1000, "a": 4}) == {"b": 64, "a": 128}
        await engine.set_quotas({"a": 500})
        await engine.set_policy("prefill_first")
        await engine.set_policy("no-such-policy")  # logged by the process, which lives on

        for i in range(6):
            engine.submit(make_request(f"r{i}", model="ab"[i % 2], max_tokens=3 + i))
        engine.submit(make_request("unknown", model="c"))
        engine.submit(make_request("aborted", model="a", max_tokens=4000))
        engine.abort("aborted")
        tokens, finishes = await answers_of(engine, [*(f"r{i}" for i in range(6)), "unknown", "aborted"])

        assert [tokens[f"r{i}"] for i in range(6)] == [3, 4, 5, 6, 7, 8]
        assert {finishes[f"r{i}"].finish for i in range(6)} == {FinishReason.LENGTH}
        assert finishes["unknown"].finish is FinishReason.ERROR
        assert "'c'" in finishes["unknown"].error
        assert finishes["aborted"].finish is FinishReason.ABORT

        await until(lambda: quotas_of(engine) == {"a": 500, "b": 1000})


async def test_native_engine__pool_without_a_size__gets_it_while_no_model_is_there(
    engine_settings, make_assignment, make_request
):
    settings = msgspec.structs.replace(engine_settings, kv_pool_bytes=None)
    async with running(settings) as (engine, capacity):
        assert (capacity.sizes_pool, capacity.total_blocks) == (True, 0)

        assert await engine.resize_pool(3000) == 3000
        await engine.add_model(make_assignment("a", 3000))
        assert await engine.resize_pool(10) == 3000
        engine.submit(make_request("r", model="a", max_tokens=3))
        tokens, _ = await answers_of(engine, ["r"])
        assert tokens == {"r": 3}

        await engine.remove_model("a")
        assert await engine.resize_pool(2000) == 2000


async def test_native_engine__what_a_simulated_one_cannot_do__is_refused(
    engine_settings, make_assignment, make_request
):
    async with running(engine_settings) as (engine, _):
        await engine.add_model(make_assignment("tiny"))
        engine.submit(make_request("plain"))
        tokens, _ = await answers_of(engine, ["plain"])

        assert tokens == {"plain": 5}
        with pytest.raises(LaunchFailed, match="does not run SGLang"):
            await engine.time_launch("tiny", LaunchShape(sms=1, prompts=1, new_tokens=8), None)


async def test_native_engine__model_removed_under_load__requests_fail_and_it_can_return(
    engine_settings, make_assignment, make_request
):
    async with running(engine_settings) as (engine, _):
        await engine.add_model(make_assignment("a"))
        engine.submit(make_request("long", model="a", max_tokens=4000))
        await engine.remove_model("a")
        await engine.remove_model("a")  # gone already
        await engine.add_model(make_assignment("a"))
        engine.submit(make_request("again", model="a", max_tokens=2))

        tokens, finishes = await answers_of(engine, ["long", "again"])

        assert finishes["long"].finish is FinishReason.ERROR
        assert finishes["again"].finish is FinishReason.LENGTH
        assert tokens["again"] == 2


async def test_native_engine__missing_checkpoint__raises_and_serves_on(
    engine_settings, make_assignment, make_request, tmp_path
):
    async with running(engine_settings) as (engine, _):
        with pytest.raises(ModelLoadError, match=r"config\.json does not exist") as caught:
            await engine.add_model(make_assignment("broken", source=str(tmp_path)))
        assert caught.value.model == "broken"

        await engine.add_model(make_assignment("a"))
        engine.submit(make_request("r", model="a"))
        _, finishes = await answers_of(engine, ["r"])
        assert finishes["r"].finish is FinishReason.LENGTH


async def test_native_engine__process_killed__events_and_calls_raise(engine_settings, make_assignment, make_request):
    async with running(engine_settings) as (engine, _):
        await engine.add_model(make_assignment("a"))
        engine.submit(make_request("r", model="a", max_tokens=4000))
        os.kill(engine.pid, signal.SIGSTOP)
        pending = asyncio.create_task(engine.remove_model("a"))
        await asyncio.sleep(0)

        os.kill(engine.pid, signal.SIGKILL)

        async with asyncio.timeout(60):
            with pytest.raises(EngineDied) as caught:
                async for _ in engine.events():
                    pass
            with pytest.raises(EngineDied):
                await pending
        assert caught.value.exit_code == -signal.SIGKILL
        assert not engine.is_alive()
        with pytest.raises(EngineDied):
            await engine.add_model(make_assignment("b"))
        engine.submit(make_request("late"))  # to a dead engine: no error here, `events` has told


async def test_native_engine__process_stopped__is_suspected_then_killed(
    engine_settings, make_assignment, make_request, until
):
    async with running(engine_settings, suspect_s=1.0, kill_s=3.0) as (engine, _):
        await engine.add_model(make_assignment("a"))
        engine.submit(make_request("r", model="a", max_tokens=4000))
        await until(lambda: engine.load_report() is not None and not engine.is_stalled())

        os.kill(engine.pid, signal.SIGSTOP)
        await until(engine.is_stalled)
        assert engine.is_alive(), "suspected is not yet given up"

        async with asyncio.timeout(60):
            with pytest.raises(EngineDied, match="its loop has not turned for 3"):
                async for _ in engine.events():
                    pass
        assert not engine.is_alive()
        assert not engine.is_stalled()
        assert not is_running(engine.pid)


async def test_native_engine__stopped_for_a_while__comes_to_itself(
    engine_settings, make_assignment, make_request, until
):
    async with running(engine_settings, suspect_s=1.0, kill_s=600.0) as (engine, _):
        await engine.add_model(make_assignment("a"))
        await until(lambda: engine.load_report() is not None)

        os.kill(engine.pid, signal.SIGSTOP)
        await until(engine.is_stalled)
        os.kill(engine.pid, signal.SIGCONT)
        await until(lambda: not engine.is_stalled())

        engine.submit(make_request("r", model="a", max_tokens=3))
        tokens, _ = await answers_of(engine, ["r"])
        assert tokens == {"r": 3}


async def test_native_engine__suspected__its_log_says_what_each_thread_is_at(engine_settings, until, caplog):
    with caplog.at_level(logging.WARNING):
        async with running(engine_settings, suspect_s=1.0, kill_s=600.0) as (engine, _):
            await until(lambda: engine.load_report() is not None)
            os.kill(engine.pid, signal.SIGSTOP)
            await until(engine.is_stalled)
            await until(lambda: "engine process makes no progress" in caplog.messages)
            os.kill(engine.pid, signal.SIGCONT)

            def told() -> str:
                return "\n".join(getattr(record, "line", "") for record in caplog.records)

            await until(lambda: "engine.py" in told() and " in run" in told())
            await until(lambda: not engine.is_stalled())

    assert caplog.messages.count("engine process makes no progress") == 1
    assert "command_intake.py" in told()  # not the loop's thread alone


async def test_native_engine__watcher_held_up__engine_is_not_suspected(engine_settings, until):
    """As after a machine was suspended: the engine's reports lie unread in the socket."""
    async with running(engine_settings, suspect_s=1.0, kill_s=1.5) as (engine, _):
        await until(lambda: engine.load_report() is not None)

        time.sleep(4)  # noqa: ASYNC251 - it is the loop that is to stand still
        suspected = []
        for _ in range(10):
            await asyncio.sleep(0.05)
            suspected.append(engine.is_stalled())

        assert not any(suspected)
        assert engine.is_alive()


async def test_native_engine__model_never_loads__engine_is_given_up(engine_settings, make_assignment):
    async with running(engine_settings, kill_s=600.0, load_s=0.5) as (engine, _):
        os.kill(engine.pid, signal.SIGSTOP)

        with pytest.raises(EngineDied, match="LoadModel has not ended"):
            await engine.add_model(make_assignment("a"))

        assert not engine.is_alive()


async def test_native_engine__cannot_start__raises_with_last_words(caplog):
    settings = EngineSettings(kind="simulated", kv_pool_bytes=1024 * 1024, device_type="no-such-gpu")
    engine = NativeEngine(settings)

    with caplog.at_level(logging.INFO), pytest.raises(EngineStartFailed, match="no-such-gpu"):
        await engine.start()

    await engine.stop()
    assert any("no-such-gpu" in getattr(record, "line", "") for record in caplog.records)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="a GPU is here")
async def test_native_engine__cuda_without_a_gpu__says_what_is_missing():
    engine = NativeEngine(EngineSettings(kind="torch_cuda", kv_pool_bytes=1024 * 1024))

    with pytest.raises(EngineStartFailed, match="no CUDA device to serve on"):
        await engine.start()

    await engine.stop()


async def test_native_engine__silent_process__start_has_a_deadline(engine_settings):
    engine = NativeEngine(engine_settings, start_timeout_s=0.001)

    with pytest.raises(EngineStartFailed, match=r"no sign of life in 0\.001 s"):
        await engine.start()

    assert not is_running(engine.pid)


async def test_native_engine__stopped__process_ends_and_events_end(engine_settings, make_assignment):
    async with running(engine_settings) as (engine, _):
        await engine.stop()

        assert not is_running(engine.pid)
        assert [events async for events in engine.events()] == []
        async with asyncio.timeout(60):
            with pytest.raises(EngineDied):
                await engine.add_model(make_assignment())


OWNER = """
import asyncio, sys
import msgspec
from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.serving.commands import EngineSettings
from profiler.probe import LaunchShape

async def own():
    engine = NativeEngine(msgspec.json.decode(sys.argv[1], type=EngineSettings))
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(own())
"""


@pytest.mark.parametrize("frozen", [False, True])
async def test_engine_process__owner_killed__leaves_no_orphan(engine_settings, frozen, until):
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, msgspec.json.encode(engine_settings).decode(), stdout=subprocess.PIPE
    )
    async with asyncio.timeout(60):
        pid = int(await owner.stdout.readline())
    assert is_running(pid)
    if frozen:
        os.kill(pid, signal.SIGSTOP)  # cannot read its socket: the kernel's parent-death signal is left

    owner.kill()
    await owner.wait()

    await until(lambda: not is_running(pid))
