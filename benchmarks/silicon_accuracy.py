"""How far predictions are from end-to-end points that NVIDIA measured of vLLM, SGLang and TensorRT-LLM.

    python benchmarks/silicon_accuracy.py --tables FOLDER [--json FILE] [--quick]

FOLDER is that of the package `aiconfigurator_core` (pip install aiconfigurator-core==0.12.0 into an environment of its
own). Every point of a dense model on one tensor-parallel mesh is judged, in virtual time: `operators` by the package's
tables of the engine's operators, as `muxfleet profile --import` reads them, `roofline` by the device's figures, which
know no weights of less than two bytes. Nothing is fitted to a point. `--quick` takes every eighth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from accuracy.closed_loop_replay import Replay
from accuracy.silicon_points import SiliconPoint, silicon_points
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from placement.estimation.problem_arrays import Estimator
from profiler.devices import device_named
from profiler.errors import ProfileUnusable
from profiler.latency import LatencyModel
from profiler.readers.aiconfigurator import OperatorTables
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec

_TTFT_BAR, _TPOT_BAR = 0.15, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    point: SiliconPoint
    latency: str
    ttft: float
    tpot: float


@cache
def _latencies(tables: OperatorTables, spec: ModelSpec, num_gpus: int) -> dict[str, LatencyModel]:
    known = tables.device
    return {
        "operators": tables.profile(spec, num_gpus).latency(spec, known, num_gpus=num_gpus),
        "roofline": RooflineLatency(known, num_gpus=num_gpus),
    }


def judged(folder: Path, points: list[SiliconPoint]) -> Iterator[Judged]:
    for point in points:
        known = device_named(point.device)
        tables = OperatorTables(
            folder=folder,
            device=known,
            engine=point.engine,
            gemm_dtype=point.gemm_dtype,
            kv_dtype=point.kv_dtype,
            fuses_scaling=point.settings.fuses_scaling,
        )
        for latency, model in _latencies(tables, point.spec, point.num_gpus).items():
            ttft_s, tpot_s = Replay(point, model, known, host_s=Estimator().host_s_of(known)).means()
            yield Judged(point=point, latency=latency, ttft=ttft_s / point.ttft_s - 1, tpot=tpot_s / point.tpot_s - 1)


def _row(rows: list[Judged], **named: str) -> dict[str, object]:
    ttft, tpot = np.array([r.ttft for r in rows]), np.array([r.tpot for r in rows])
    return {
        **named,
        "points": len(rows),
        "ttft_bias": float(ttft.mean()),
        "ttft_error": float(np.abs(ttft).mean()),
        "ttft_median": float(np.median(np.abs(ttft))),
        "tpot_bias": float(tpot.mean()),
        "tpot_error": float(np.abs(tpot).mean()),
        "tpot_median": float(np.median(np.abs(tpot))),
        "ttft_within": float((np.abs(ttft) <= _TTFT_BAR).mean()),
        "tpot_within": float((np.abs(tpot) <= _TPOT_BAR).mean()),
        "within": float(((np.abs(ttft) <= _TTFT_BAR) & (np.abs(tpot) <= _TPOT_BAR)).mean()),
    }


def main() -> None:
    parser = make_parser(__doc__, quick="every eighth point")
    parser.add_argument("--tables", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    points = list(silicon_points(args.tables))[:: 8 if args.quick else 1]
    try:
        found = list(judged(args.tables, points))
    except ProfileUnusable as error:
        parser.error(str(error))
    rows = []
    for latency in dict.fromkeys(f.latency for f in found):
        mine = [f for f in found if f.latency == latency]
        groups = sorted({(f.point.device, f.point.engine, f.point.model, f.point.gemm_dtype) for f in mine})
        for device, engine, model, dtype in groups:
            of_group = [
                f
                for f in mine
                if (f.point.device, f.point.engine, f.point.model, f.point.gemm_dtype) == (device, engine, model, dtype)
            ]
            rows.append(_row(of_group, latency=latency, device=device, engine=engine, model=model, dtype=dtype))
        rows.append(_row(mine, latency=latency, device="all", engine="", model="", dtype=""))
    columns = {name: "{" + name + "}" for name in ("latency", "device", "engine", "model", "dtype", "points")}
    columns |= {name: f"{{{name}:+.1%}}" for name in rows[0] if name not in columns}
    print_table(rows, columns, title="predicted against measured; within: TTFT 15 % and TPOT 10 %", width=200)
    write_report(args.json, {**machine_facts(), "time": "virtual"}, rows)


if __name__ == "__main__":
    main()
