"""How long the controller takes to answer heartbeats of a large fleet while a plan for it is computed.

    python benchmarks/controller_heartbeats.py [--units 512] [--models 300] [--seconds 30]

Units of two GPUs, models of 7B, and the demand of one of them jumps now and then. All but the planner is in this
process, as in the product, without Ray's own calls. `cpu` are milliseconds of the controller's thread: on a machine
that has other work, the others count how long the thread waits for a core.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

import numpy as np

from deploy.serve.controller import Controller
from pdmux_actor.lease import Lease, ModelPhase, ModelStatus, UnitReport
from router.admission.demand_report import DemandReport, ModelAsked

_GIB = 2**30
_BLOCK_BYTES = 16 * 1024
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
_REQUESTS_PER_S = 8.0
_BEAT_S = 0.5


def report_of(unit: int, lease: Lease | None) -> UnitReport:
    models = () if lease is None else lease.models
    return UnitReport(
        unit_id=f"u{unit:04}",
        node=f"n{unit // 4}",
        pool="p",
        num_gpus=2,
        endpoint="127.0.0.1:1",
        memory_bytes=160 * _GIB,
        block_bytes=_BLOCK_BYTES,
        total_blocks=60 * _GIB // _BLOCK_BYTES,
        lease_version=0 if lease is None else lease.version,
        models=tuple(ModelStatus(model=m.model, phase=ModelPhase.READY, max_model_len=4096) for m in models),
        device="A100-80G",
    )


def demand_report(models: int, asked: np.ndarray) -> DemandReport:
    return DemandReport(
        gateway_id="g",
        models=tuple(
            ModelAsked(
                model=f"m{i:03}",
                requests_total=int(asked[i]),
                prompt_tokens_total=1400 * int(asked[i]),
                output_tokens_total=200 * int(asked[i]),
                waiting=0,
            )
            for i in range(models)
        ),
    )


async def measure(units: int, models: int, seconds: float, folder: Path) -> dict[str, object]:
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    controller = Controller(token="t")
    demand = {"rate_per_s": _REQUESTS_PER_S, "prompt_tokens": 1400, "output_tokens": 200}
    sections = [
        {"id": f"m{i:03}", "source": str(folder), "demand": demand, "replicas": {"min": 1, "max": 8}}
        for i in range(models)
    ]
    await controller.reconfigure({"models": sections, "policy": "mux", "expected_units": {"p": units}})
    leases: list[Lease | None] = [None] * units
    asked, took_s, cpu_s = np.zeros(models), [], []
    start_s = time.monotonic()
    while (elapsed_s := time.monotonic() - start_s) < seconds:
        beat_s = time.monotonic()
        asked += _REQUESTS_PER_S * _BEAT_S
        asked[int(elapsed_s / 10) % models] += 20 * _REQUESTS_PER_S * _BEAT_S
        controller._loop.hear_demand(demand_report(models, asked), time.monotonic())
        for unit in range(units):
            report = report_of(unit, leases[unit])
            before_s, cpu_before_s = time.perf_counter(), time.thread_time()
            leases[unit] = await controller.heartbeat(report)
            took_s.append(time.perf_counter() - before_s)
            cpu_s.append(time.thread_time() - cpu_before_s)
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.01, _BEAT_S - (time.monotonic() - beat_s)))
    kinds = [d.kind for d in (await controller.status()).decisions]
    return {
        "units": units,
        "models": models,
        "heartbeats": len(took_s),
        "p50_ms": round(1e3 * float(np.percentile(took_s, 50)), 2),
        "p99_ms": round(1e3 * float(np.percentile(took_s, 99)), 2),
        "max_ms": round(1e3 * max(took_s), 1),
        "p99_cpu_ms": round(1e3 * float(np.percentile(cpu_s, 99)), 2),
        "max_cpu_ms": round(1e3 * max(cpu_s), 1),
        "decisions": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    }


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(measure(options.units, options.models, options.seconds, Path(folder))))


if __name__ == "__main__":
    main()
