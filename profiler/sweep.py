"""Chooses which launches are worth measuring of an engine."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profiler.probe import LaunchShape, ProbeLimits
from profiler.specs import DeviceSpec

_MAX_SHARES = 7  # MuxWise profiles about as many partitions of a device
_HELD_OUT_SEED = 20261121
_HELD_OUT_PER_PHASE = 6
_LAUNCHES_PER_PAIR = 6  # of each partition, between two of decode beside prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    launch: LaunchShape
    is_held_out: bool = False
    beside: LaunchShape | None = None


def partition_shares(device: DeviceSpec) -> tuple[int, ...]:
    """SM counts that a lane can have, at most seven, spread evenly; the last is the whole device.

    >>> from profiler.devices import laptop_cpu
    >>> from profiler.gpus.h100 import DEVICE as H100
    >>> partition_shares(H100), partition_shares(laptop_cpu(num_cores=2, memory_bytes=1))
    ((16, 32, 56, 72, 88, 112, 132), (1, 2))
    """
    step = device.partition_granularity_sms
    wanted = np.linspace(0, device.num_sms, _MAX_SHARES + 1)[1:]
    shares = {max(step, int(share // step * step)) for share in wanted[:-1]}
    return (*sorted(share for share in shares if share < device.num_sms), device.num_sms)


def plan_sweep(limits: ProbeLimits) -> list[PlannedLaunch]:
    """Coarse to fine, and every phase and partition early: a sweep that is cut short still covers the range.

    Grids are geometric. Held-out launches are drawn log-uniformly from the same ranges, off the grid.
    """
    shares = sorted({*limits.shares, *limits.shares_of_decode}, reverse=True)
    by_share = [list(_one_share(limits, share)) for share in shares]
    pairs = list(_side_by_side(limits))
    planned = []
    for index, row in enumerate(itertools.zip_longest(*by_share)):
        planned += [launch for launch in row if launch is not None]
        if index % _LAUNCHES_PER_PAIR == _LAUNCHES_PER_PAIR - 1 and pairs:
            planned.append(pairs.pop(0))
    return planned + pairs


def _one_share(limits: ProbeLimits, sms: int) -> Iterator[PlannedLaunch]:
    grids = [list(_prefills(limits, sms)), list(_decodes(limits, sms)), list(_fused(limits, sms))]
    drawn = list(_held_out(limits, sms))
    fitting = [[launch for launch in grid if _fits(launch, limits)] for grid in grids]
    order = [_spread(grid) for grid in fitting]
    merged = [launch for row in itertools.zip_longest(*order) for launch in row if launch is not None]
    every = max(1, len(merged) // max(1, len(drawn)))
    for index, launch in enumerate(merged):
        yield PlannedLaunch(launch=launch)
        if index % every == every - 1 and drawn:
            yield PlannedLaunch(launch=drawn.pop(0), is_held_out=True)
    for launch in drawn:
        yield PlannedLaunch(launch=launch, is_held_out=True)


def _spread(grid: list[LaunchShape]) -> list[LaunchShape]:
    """Ends first, then middles of what lies between: any prefix covers the range.

    >>> [launch.sms for launch in _spread([LaunchShape(sms=n) for n in range(6)])]
    [0, 5, 2, 1, 3, 4]
    """
    order: list[int] = []
    spans = [(0, len(grid) - 1)]
    for index in (0, len(grid) - 1):
        if grid and index not in order:
            order.append(index)
    while spans:
        low, high = spans.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return [grid[index] for index in order]


def _prefills(limits: ProbeLimits, sms: int) -> Iterator[LaunchShape]:
    longest = min(limits.max_batch_tokens, limits.max_sequence_tokens)
    for new_tokens in _powers(8, longest):
        for context_tokens in (0, 256, 1024, 4096):
            yield LaunchShape(sms=sms, prompts=1, new_tokens=new_tokens, context_tokens=context_tokens)
    for new_tokens in _powers(64, longest // 4):
        yield LaunchShape(sms=sms, prompts=4, new_tokens=new_tokens)


def _decodes(limits: ProbeLimits, sms: int) -> Iterator[LaunchShape]:
    for sequences in _powers(1, limits.max_sequences):
        for depth in _powers(16, limits.max_sequence_tokens - 1, factor=4):
            yield LaunchShape(sms=sms, sequences=sequences, depth=depth)


def _fused(limits: ProbeLimits, sms: int) -> Iterator[LaunchShape]:
    longest = min(512, limits.max_batch_tokens, limits.max_sequence_tokens)
    for new_tokens, sequences in itertools.product(_powers(16, longest, factor=4), _powers(1, 64, factor=4)):
        if sequences <= limits.max_sequences:
            for depth, context_tokens in ((64, 0), (512, 512)):
                yield LaunchShape(
                    sms=sms,
                    prompts=1,
                    new_tokens=new_tokens,
                    context_tokens=context_tokens,
                    sequences=sequences,
                    depth=depth,
                )


def _held_out(limits: ProbeLimits, sms: int) -> Iterator[LaunchShape]:
    rng = np.random.default_rng([_HELD_OUT_SEED, sms])
    longest = min(limits.max_batch_tokens, limits.max_sequence_tokens)

    def draw(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(max(low, high)))))

    made = {"prefill": 0, "decode": 0, "mixed": 0}
    for _ in range(50 * _HELD_OUT_PER_PHASE):
        context_tokens = draw(1, 1024) - 1
        depth = draw(16, limits.max_sequence_tokens - 1)
        candidates = (
            LaunchShape(sms=sms, prompts=1, new_tokens=draw(8, longest), context_tokens=context_tokens),
            LaunchShape(sms=sms, sequences=draw(1, limits.max_sequences), depth=depth),
            LaunchShape(
                sms=sms,
                prompts=1,
                new_tokens=draw(16, min(512, longest)),
                sequences=draw(1, min(64, limits.max_sequences)),
                depth=min(depth, 1024),
            ),
        )
        for launch in candidates:
            if made[launch.phase] < _HELD_OUT_PER_PHASE and _fits(launch, limits):
                made[launch.phase] += 1
                yield launch


def _side_by_side(limits: ProbeLimits) -> Iterator[PlannedLaunch]:
    """Decode steps beside a prefill on the rest of the device: what the contention guard's grid is made of."""
    whole = limits.shares[-1]
    for sms, new_tokens in itertools.product(limits.shares_of_decode[:-1], (256, 1024)):
        beside = LaunchShape(sms=whole - sms, prompts=1, new_tokens=min(new_tokens, limits.max_batch_tokens))
        for sequences, depth in itertools.product((1, 8, 32), (64, 1024)):
            launch = LaunchShape(sms=sms, sequences=sequences, depth=depth)
            if sequences <= limits.max_sequences and _fits(launch, limits) and _fits(beside, limits):
                yield PlannedLaunch(launch=launch, beside=beside)


def _fits(launch: LaunchShape, limits: ProbeLimits) -> bool:
    longest = max(launch.new_tokens + launch.context_tokens, launch.depth + 1)
    # Half of the memory, since another launch may have to find room beside it.
    has_room = longest <= limits.max_sequence_tokens and launch.kv_tokens <= limits.max_kv_tokens // 2
    return has_room and limits.allow(launch)


def _powers(first: int, last: int, *, factor: int = 2) -> Iterator[int]:
    value = first
    while value <= last:
        yield value
        value *= factor
