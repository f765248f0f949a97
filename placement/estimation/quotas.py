"""Token-block quotas that a unit starts with (MuxServe §4.2, `init_token_block_quota` of ADBS)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.demand import ModelDemand
from placement.estimation.memory import blocks_for_tokens
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaClaim:
    """A model's claim on a unit's blocks; `demand` is this replica's part of it."""

    model: str
    spec: ModelSpec
    demand: ModelDemand
    max_model_len: int

    @property
    def kv_bytes_per_s(self) -> float:
        """Popularity x KV size. With requests of equal length in all models it is MuxServe's rate x heads x layers."""
        return self.demand.rate_per_s * self.demand.tokens_per_request * self.spec.kv_bytes_per_token

    @property
    def least_tokens(self) -> int:
        """The shortest longest sequence that is any use: a request of mean length."""
        return max(1, min(self.max_model_len, math.ceil(self.demand.tokens_per_request)))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShortage:
    """The pool does not hold one mean request of every model at once. `missing_blocks` is None where more blocks do not
    help because the model's head does not fit a block.
    """

    reason: str
    missing_blocks: int | None


def initial_quotas(
    claims: Sequence[QuotaClaim], *, total_blocks: int, block_bytes: int, num_gpus: int = 1
) -> Mapping[str, int] | QuotaShortage:
    """Shares all of `total_blocks` by popularity x KV size, none below its floor. `num_gpus`: of the unit.

    The floor of a model fits one sequence of its maximum length. Where the floors together exceed the pool, sequences
    of every model are limited to the longest common length that fits.
    """
    if not claims:
        return {}
    shortage = shortage_of(claims, total_blocks=total_blocks, block_bytes=block_bytes, num_gpus=num_gpus)
    if shortage is not None:
        return shortage
    if len(claims) == 1:
        return {claims[0].model: total_blocks}
    floors = _highest_floors(claims, block_bytes, num_gpus, total_blocks=total_blocks)
    return _share(total_blocks, {claim.model: claim.kv_bytes_per_s for claim in claims}, floors)


def shortage_of(
    claims: Sequence[QuotaClaim], *, total_blocks: int, block_bytes: int, num_gpus: int = 1
) -> QuotaShortage | None:
    """Says what the pool lacks to hold one mean request of each model; None: nothing."""
    least = _floors(claims, block_bytes, num_gpus, max_tokens=0)
    if isinstance(least, QuotaShortage):
        return least
    needed = sum(least.values())
    if needed <= total_blocks:
        return None
    return QuotaShortage(
        reason=f"one request of mean length of each model needs {needed} token blocks together, "
        f"the pool has {total_blocks}",
        missing_blocks=needed - total_blocks,
    )


def _floors(
    claims: Sequence[QuotaClaim], block_bytes: int, num_gpus: int, *, max_tokens: int
) -> Mapping[str, int] | QuotaShortage:
    """Blocks of one sequence per model, of `max_tokens` but not beyond its maximum nor below its least length."""
    floors = {}
    for claim in claims:
        tokens = max(claim.least_tokens, min(claim.max_model_len, max_tokens))
        blocks = blocks_for_tokens(claim.spec, block_bytes, tokens, num_gpus)
        if blocks is None:
            return QuotaShortage(
                reason=f"K and V of one token and head of {claim.model!r} exceed a block of {block_bytes} bytes",
                missing_blocks=None,
            )
        floors[claim.model] = blocks
    return floors


def _highest_floors(
    claims: Sequence[QuotaClaim], block_bytes: int, num_gpus: int, *, total_blocks: int
) -> Mapping[str, int]:
    """Bisects for the longest common length whose floors fit; that of length 0 is known to fit, and mostly all do."""
    shortest, longest = 0, max(claim.max_model_len for claim in claims)
    middle = longest
    while shortest < longest:
        floors = _floors(claims, block_bytes, num_gpus, max_tokens=middle)
        assert not isinstance(floors, QuotaShortage), "block size was checked"
        if sum(floors.values()) <= total_blocks:
            shortest = middle
        else:
            longest = middle - 1
        middle = (shortest + longest + 1) // 2
    floors = _floors(claims, block_bytes, num_gpus, max_tokens=shortest)
    assert not isinstance(floors, QuotaShortage), "block size was checked"
    return floors


def _share(total: int, weights: Mapping[str, float], floors: Mapping[str, int]) -> Mapping[str, int]:
    """Proportional shares; who would fall below its floor gets the floor, and the others share what remains."""
    at_floor: dict[str, int] = {}
    while True:
        free = {model: weight for model, weight in weights.items() if model not in at_floor}
        remaining = total - sum(at_floor.values())
        shares = proportional(remaining, free)
        below = [model for model in free if shares[model] < floors[model]]
        if not below:
            return {**at_floor, **shares}
        at_floor |= {model: floors[model] for model in below}


def proportional(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Largest-remainder rounding; ties go to the name that sorts first.

    >>> proportional(10, {"a": 1.0, "b": 1.0, "c": 1.0})
    {'a': 4, 'b': 3, 'c': 3}
    """
    if not weights:
        return {}
    if not any(weights.values()):
        return proportional(total, dict.fromkeys(weights, 1.0))
    # Exact: as integers over the largest denominator, which the others divide.
    ratios = {model: weight.as_integer_ratio() for model, weight in weights.items()}
    denominator = max(below for _, below in ratios.values())
    parts = {model: above * (denominator // below) for model, (above, below) in ratios.items()}
    whole = sum(parts.values())
    shares = {model: total * part // whole for model, part in parts.items()}
    by_remainder = sorted(parts, key=lambda model: (-(total * parts[model] % whole), model))
    for model in by_remainder[: total - sum(shares.values())]:
        shares[model] += 1
    return shares
