"""How far predictions are from end-to-end points that NVIDIA measured of vLLM, SGLang and TensorRT-LLM.

    python benchmarks/silicon_accuracy.py --tables FOLDER [--json FILE] [--quick]

FOLDER is that of the package `aiconfigurator_core` (pip install aiconfigurator-core==0.12.0 into an environment of its
own). Every point of a dense model on one tensor-parallel mesh is judged, in virtual time: `operators` by the package's
tables of the engine's operators, as `muxfleet profile --import` reads them, `roofline` by the device's figures, which
know no weights of less than two bytes. Nothing is fitted to a point of these. `operators after a short run` of the
engine: on every mesh whose load is known the two points with the fewest clients stand for it, and are judged nowhere.
`operators after short runs elsewhere`: what such runs on other GPUs teach of the same engine, on as many GPUs; nothing
of the GPU itself, whose points are all judged. `--quick` takes every eighth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy.closed_loop_replay import Replay
from accuracy.silicon_points import (
    Lesson,
    SiliconPoint,
    TaughtLatency,
    learned,
    light_points,
    of_other_gpus,
    silicon_points,
)
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from placement.estimation.problem_arrays import Estimator
from profiler.devices import device_named
from profiler.errors import ProfileUnusable
from profiler.latency import LatencyModel
from profiler.readers.aiconfigurator import OperatorTables
from profiler.roofline import RooflineLatency

_TTFT_BAR, _TPOT_BAR = 0.15, 0.10
_SHORT_RUN = 2  # points


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    point: SiliconPoint
    latency: str
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaughtMesh:
    points: Sequence[SiliconPoint]
    operators: LatencyModel
    lesson: Lesson


def judged(folder: Path, points: Sequence[SiliconPoint]) -> Iterator[Judged]:
    taught: list[_TaughtMesh] = []
    for mesh in _by_mesh(points):
        some = mesh[0]
        known = device_named(some.device)
        tables = OperatorTables(
            folder=folder,
            device=known,
            engine=some.engine,
            gemm_dtype=some.gemm_dtype,
            kv_dtype=some.kv_dtype,
            fuses_scaling=some.settings.fuses_scaling,
        )
        operators = tables.profile(some.spec, some.num_gpus).latency(some.spec, known, num_gpus=some.num_gpus)
        roofline = RooflineLatency(known, num_gpus=some.num_gpus)
        for point in mesh:
            yield _judged(point, "operators", *_means(point, operators, Lesson()))
            yield _judged(point, "roofline", *_means(point, roofline, Lesson()))
        if some.is_public and len(mesh) > _SHORT_RUN:
            short, long = light_points(mesh)
            lesson = learned(short, long, lambda point, so_far, of=operators: _means(point, of, so_far))
            for point in mesh:
                if point not in (short, long):
                    yield _judged(point, "operators after a short run", *_means(point, operators, lesson))
            taught.append(_TaughtMesh(points=mesh, operators=operators, lesson=lesson))
    yield from _after_short_runs_elsewhere(taught)


def _after_short_runs_elsewhere(taught: Sequence[_TaughtMesh]) -> Iterator[Judged]:
    for here in taught:
        mine = here.points[0]
        others = [(t.points[0], t.lesson) for t in taught if t.points[0].device != mine.device]
        lessons = [lesson for p, lesson in others if (p.engine, p.num_gpus) == (mine.engine, mine.num_gpus)]
        if lessons:
            means = of_other_gpus(lessons)
            for point in here.points:
                found = _means(point, here.operators, means)
                yield _judged(point, "operators after short runs elsewhere", *found)


def _by_mesh(points: Sequence[SiliconPoint]) -> Iterator[Sequence[SiliconPoint]]:
    """By all that decides which tables are read."""
    meshes: dict[object, list[SiliconPoint]] = {}
    for p in points:
        key = (p.device, p.engine, p.model, p.gemm_dtype, p.num_gpus, p.settings.fuses_scaling)
        meshes.setdefault(key, []).append(p)
    return iter(meshes.values())


def _means(point: SiliconPoint, latency: LatencyModel, lesson: Lesson) -> tuple[float, float]:
    """TTFT and TPOT."""
    known = device_named(point.device)
    replay = Replay(point, TaughtLatency(latency, lesson), known, host_s=Estimator().host_s_of(known))
    ttft_s, tpot_s = replay.means()
    return ttft_s + lesson.way_s, tpot_s


def _judged(point: SiliconPoint, latency: str, ttft_s: float, tpot_s: float) -> Judged:
    return Judged(point=point, latency=latency, ttft=ttft_s / point.ttft_s - 1, tpot=tpot_s / point.tpot_s - 1)


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
