"""A fleet for a benchmark: `muxfleet up` in a process of its own, and what each part of it costs."""

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))

from fleet_process import START_S, FleetProcess

_LAST_WORDS = 20_000  # characters


@contextmanager
def running_fleet(
    fleet_file: Path,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
    start_s: float = START_S,
    log: Path | None = None,
) -> Iterator[FleetProcess]:
    """As `FleetProcess`, while it serves. SIGTERM to the benchmark ends the fleet, too. `log`: keeps all that it says,
    also where it never serves.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    fleet = FleetProcess(fleet_file, environment, options, prefix, start_s)
    try:
        fleet.wait_until_serving()
        yield fleet
        fleet.stop()
    except BaseException:
        print(fleet.output[-_LAST_WORDS:], file=sys.stderr)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # a benchmark's limit would break off what ends its fleet
        if log is not None:
            log.write_text(fleet.output, encoding="utf-8")
        fleet.kill()
        signal.signal(signal.SIGTERM, before)


# By words of a command line; the first that fits.
_PARTS: Mapping[str, str] = {
    "pdmux_actor.serving.process": "engine",
    "router.text.worker": "gateway's text process",
    "deploy.planning.planner_program": "planner",
    ":Gateway": "gateway",
    ":Controller": "control loop",
    "ServeReplica:units": "unit",
    "ServeReplica": "replica that does nothing",
    "ServeController": "Serve's controller",
    "ProxyActor": "Serve's Python proxy",
    "HAProxy": "Serve's HAProxy manager",
    "haproxy": "HAProxy",
    "gcs_server": "Ray's GCS",
    "raylet/raylet": "raylet",
    "log_monitor": "Ray's log monitor",
    "dashboard": "Ray's agents",
    "runtime_env": "Ray's agents",
    "ray::": "Ray's idle workers",
}
_DRIVER = "muxfleet up"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """Of all processes that play one part. `cpu_s` since they began; `memory_bytes` is what would be free without them
    (unique set size).
    """

    processes: int
    threads: int
    cpu_s: float
    memory_bytes: int
    resident_bytes: int


def tree_costs(pid: int) -> Mapping[str, PartCost]:
    """Returns the costs of a process and all below it, by part."""
    root = psutil.Process(pid)
    found: dict[str, list[PartCost]] = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            part = _DRIVER if process.pid == pid else _part(" ".join(process.cmdline()))
            times, memory = process.cpu_times(), process.memory_full_info()
            cost = PartCost(
                processes=1,
                threads=process.num_threads(),
                cpu_s=times.user + times.system,
                memory_bytes=memory.uss,
                resident_bytes=memory.rss,
            )
        except psutil.Error:  # it has just ended
            continue
        found.setdefault(part, []).append(cost)
    return {part: total(costs) for part, costs in found.items()}


def cpu_between(before: Mapping[str, PartCost], after: Mapping[str, PartCost]) -> Mapping[str, float]:
    """Returns CPU seconds by part. A process that began in between counts whole."""
    return {part: cost.cpu_s - (before[part].cpu_s if part in before else 0.0) for part, cost in after.items()}


def total(costs: Iterable[PartCost]) -> PartCost:
    listed = tuple(costs)
    return PartCost(
        processes=sum(c.processes for c in listed),
        threads=sum(c.threads for c in listed),
        cpu_s=sum(c.cpu_s for c in listed),
        memory_bytes=sum(c.memory_bytes for c in listed),
        resident_bytes=sum(c.resident_bytes for c in listed),
    )


def _part(command: str) -> str:
    return next((part for words, part in _PARTS.items() if words in command), "other")
