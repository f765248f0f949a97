"""Run by test_actor.py in a process of its own: Ray reads its environment on import, and workers take the classes of
`__main__` by value.

    python actor_scenario.py CHECKPOINT
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time

import msgspec
import psutil
import ray
from gateway_peer import GatewayPeer
from ray import serve

from pdmux_actor.lease import Lease, ModelAssignment, ModelPhase
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.decision import LogExcerpt
from pdmux_actor.serving.actor import ActorSettings, PdmuxActor
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Credit, Generate

PROGRAM = "pdmux_actor.serving.process"
PATIENCE_S = 60.0
SLO = Slo(ttft_s=1.0, tbt_s=0.1)
STARTED_S = time.monotonic()


class Controller:
    def __init__(self, source: str) -> None:
        model = ModelAssignment(model="tiny", source=source, quota_blocks=1000, slo=SLO)
        self._lease = Lease(version=1, models=(model,), policy="mux", stream_token="secret")
        self._reports = {}

    async def heartbeat(self, report):
        self._reports[report.unit_id] = (time.time(), report)
        return self._lease

    async def fresh_reports(self):
        return [report for heard_s, report in self._reports.values() if time.time() - heard_s < 1.5]


def engines() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if PROGRAM in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def until(what, condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < deadline_s, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.05)
    print(f"{time.monotonic() - STARTED_S:5.1f} s  {what}", flush=True)
    return result


def ready_unit(other_than=()):
    """The report of a unit that serves the model, heard of lately."""
    controller = serve.get_deployment_handle("Controller", app_name="gateway")
    for report in controller.fresh_reports.remote().result():
        phases = [status.phase for status in report.models]
        if report.unit_id not in other_than and phases == [ModelPhase.READY]:
            return report
    return None


async def first_tokens(report, max_tokens):
    peer = await GatewayPeer.connect(report.endpoint)
    request = GenerateRequest(
        request_id="r",
        model="tiny",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        slo=SLO,
    )
    peer.send(Generate(stream=1, request=request))
    while 1 not in peer.deltas:
        assert await peer.next() is not None
    peer.send(Credit(stream=1, deltas=100_000))
    return peer


async def last_delta(peer):
    await peer.until_finished(1)
    await peer.close()
    return peer.deltas[1][-1]


async def serve_then(report, action, max_tokens=4000):
    """The last Delta of a stream in the middle of which `action` happens."""
    peer = await first_tokens(report, max_tokens)
    await asyncio.to_thread(action)
    return await last_delta(peer)


def decisions_are_told(unit_id):
    units = serve.get_deployment_handle("unit-1g", app_name="units")
    (body,) = units.broadcast("decisions", unit_id, 2).results(timeout_s=PATIENCE_S)
    excerpt = msgspec.json.decode(body, type=LogExcerpt)
    assert len(excerpt.decisions) == 2, excerpt
    assert units.broadcast("decisions", "another-unit", 2).results(timeout_s=PATIENCE_S) == [None]


def deploy_units() -> None:
    settings = ActorSettings(
        engine=EngineSettings(kind="simulated", kv_pool_bytes=32 * 1024 * 1024, num_cores=2), pool="p"
    )
    actor = serve.deployment(
        PdmuxActor,
        name="unit-1g",
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=60,
        graceful_shutdown_wait_loop_s=0.1,
    )
    serve.run(actor.bind(msgspec.to_builtins(settings)), name="units", route_prefix=None)


def main(checkpoint: str) -> None:
    deploy_units()
    until("unit runs without a control loop", lambda: len(engines()) == 1)

    controller = serve.deployment(Controller, name="Controller", ray_actor_options={"num_cpus": 0})
    serve.run(controller.bind(checkpoint), name="gateway", route_prefix=None)
    first = until("unit registers and is leased its model", ready_unit)
    assert first.load is None or first.load.total_blocks == first.total_blocks
    delta = asyncio.run(serve_then(first, lambda: None, max_tokens=5))
    assert delta.finish is FinishReason.LENGTH, delta
    decisions_are_told(first.unit_id)

    (engine,) = engines()
    delta = asyncio.run(serve_then(first, engine.kill))
    assert (delta.finish, delta.retryable) == (FinishReason.ERROR, True), delta
    second = until("engine killed: Serve restarts the unit", lambda: ready_unit({first.unit_id}))

    (engine,) = engines()
    os.kill(engine.ppid(), signal.SIGKILL)
    until("actor killed: its engine goes too", lambda: not engine.is_running() or engine not in engines())
    third = until("actor killed: Serve restarts the unit", lambda: ready_unit({first.unit_id, second.unit_id}))

    delta = asyncio.run(serve_then(third, lambda: serve.delete("units")))
    assert delta.finish is FinishReason.LENGTH, delta
    until("unit deleted: open streams end, its engine goes", lambda: not engines())


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="mux-", dir="/tmp")
    try:
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _temp_dir=folder,
        )
        main(sys.argv[1])
        print("done", flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
