"""Token-block quotas that a unit starts with (MuxServe §4.2, `init_token_block_quota` of ADBS)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.demand import ModelDemand
from placement.estimation.memory import KvRows, kv_rows
from placement.problem import PlacementModel


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaClaim:
    """A model's claim on a unit's blocks. `rows` are those of its KV there, None where one token's K and V exceed a
    block; `rate_per_s` is this replica's part of the demand. `least_blocks` and `most_blocks` hold one sequence: of the
    least length that is any use, and of its maximum length.
    """

    model: str
    block_bytes: int
    rows: KvRows | None
    rate_per_s: float
    kv_bytes_per_request: float
    least_tokens: int
    max_model_len: int
    least_blocks: int
    most_blocks: int

    @classmethod
    def of(cls, model: PlacementModel, block_bytes: int, num_gpus: int = 1) -> "QuotaClaim":
        """Makes the claim of a replica that has all of the demand."""
        demand, rows = model.demand, kv_rows(model.spec, block_bytes, num_gpus)
        least = least_tokens(demand, model.max_model_len)
        return cls(
            model=model.model,
            block_bytes=block_bytes,
            rows=rows,
            rate_per_s=demand.rate_per_s,
            kv_bytes_per_request=demand.tokens_per_request * model.spec.kv_bytes_per_token,
            least_tokens=least,
            max_model_len=model.max_model_len,
            least_blocks=0 if rows is None else rows.blocks_for(least),
            most_blocks=0 if rows is None else rows.blocks_for(max(least, model.max_model_len)),
        )

    def at(self, rate_per_s: float) -> "QuotaClaim":
        """Returns the claim of a replica with this load. A large plan has thousands, and `replace` takes its time."""
        return QuotaClaim(
            model=self.model,
            block_bytes=self.block_bytes,
            rows=self.rows,
            rate_per_s=rate_per_s,
            kv_bytes_per_request=self.kv_bytes_per_request,
            least_tokens=self.least_tokens,
            max_model_len=self.max_model_len,
            least_blocks=self.least_blocks,
            most_blocks=self.most_blocks,
        )

    @property
    def kv_bytes_per_s(self) -> float:
        """Popularity x KV size. With requests of equal length in all models it is MuxServe's rate x heads x layers."""
        return self.rate_per_s * self.kv_bytes_per_request

    def floor(self, max_tokens: int) -> int:
        """Blocks of one sequence of `max_tokens`, but not beyond its maximum length nor below its least."""
        assert self.rows is not None, "a token fits a block"
        return self.rows.blocks_for(max(self.least_tokens, min(self.max_model_len, max_tokens)))


def least_tokens(demand: ModelDemand, max_model_len: int) -> int:
    """The shortest longest sequence that is any use: a request of mean length."""
    return max(1, min(max_model_len, math.ceil(demand.tokens_per_request)))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShortage:
    """The pool does not hold one mean request of every model at once. `missing_blocks` is None where more blocks do not
    help because the model's head does not fit a block.
    """

    reason: str
    missing_blocks: int | None


def initial_quotas(claims: Sequence[QuotaClaim], *, total_blocks: int) -> Mapping[str, int] | QuotaShortage:
    """Shares all of `total_blocks` by popularity x KV size, none below its floor.

    The floor of a model fits one sequence of its maximum length. Where the floors together exceed the pool, sequences
    of every model are limited to the longest common length that fits.
    """
    if not claims:
        return {}
    shortage = shortage_of(claims, total_blocks=total_blocks)
    if shortage is not None:
        return shortage
    if len(claims) == 1:
        return {claims[0].model: total_blocks}
    floors = {claim.model: claim.most_blocks for claim in claims}
    if sum(floors.values()) > total_blocks:
        longest = _longest_common(claims, total_blocks)
        floors = {claim.model: claim.floor(longest) for claim in claims}
    return _share(total_blocks, {claim.model: claim.kv_bytes_per_s for claim in claims}, floors)


def shortage_of(claims: Sequence[QuotaClaim], *, total_blocks: int) -> QuotaShortage | None:
    """Says what the pool lacks to hold one mean request of each model; None: nothing."""
    for claim in claims:
        if claim.rows is None:
            return QuotaShortage(
                reason=f"K and V of one token and head of {claim.model!r} exceed a block of {claim.block_bytes} bytes",
                missing_blocks=None,
            )
    needed = sum(claim.least_blocks for claim in claims)
    if needed <= total_blocks:
        return None
    return QuotaShortage(
        reason=f"one request of mean length of each model needs {needed} token blocks together, "
        f"the pool has {total_blocks}",
        missing_blocks=needed - total_blocks,
    )


def _longest_common(claims: Sequence[QuotaClaim], total_blocks: int) -> int:
    """Bisects for the longest common length whose floors fit; that of length 0 is known to fit."""
    shortest, longest = 0, max(claim.max_model_len for claim in claims)
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if sum(claim.floor(middle) for claim in claims) <= total_blocks:
            shortest = middle
        else:
            longest = middle - 1
    return shortest


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
