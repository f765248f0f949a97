"""What a repartition costs: a small job on a lane of the CPU executor, on the cores in force and on others."""

import threading
import time

import numpy as np
import torch

from pdmux_actor.executor.lanes import LaneThread, PinnedThreads, available_cores

# Enough elements for torch to use every thread of the lane.
_ELEMENTS = 1 << 17


def measure_repartition(rounds: int) -> dict[str, float]:
    """From submit to end in microseconds, alternating; empty where there is a single core."""
    cores = available_cores()
    if len(cores) < 2:
        return {}
    partitions = (cores, cores[: len(cores) // 2])
    threads = PinnedThreads()
    lane = LaneThread("repartition", cores, threads)
    for partition in partitions * 3:  # each partition's threads exist from its first use on
        _job_us(lane, partition)
    taken_us: dict[str, list[float]] = {"same": [], "switched": []}
    for number in range(rounds):
        partition = partitions[number % 2]
        taken_us["switched"].append(_job_us(lane, partition))
        taken_us["same"].append(_job_us(lane, partition))
    threads.close()
    return {
        f"{kind}_p{share}_us": float(np.percentile(values, share))
        for kind, values in taken_us.items()
        for share in (50, 99)
    }


def _job_us(lane: LaneThread, cores: tuple[int, ...]) -> float:
    numbers = torch.ones(_ELEMENTS)
    ended = threading.Event()

    def job() -> None:
        numbers.add_(1.0)
        ended.set()

    started_s = time.perf_counter()
    lane.submit(job, cores)
    ended.wait()
    return 1e6 * (time.perf_counter() - started_s)
