"""Quotas that follow use: MuxServe's adaptive adjustment (§4.2.3), in real token blocks, with floors and hysteresis."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pdmux_actor.scheduling.queues import ModelQueue

_NEEDY, _IDLE = 0.9, 0.5  # use of the quota above which a model receives, below which it gives
_GIVE_SHARE = 0.5  # of what an idle model does not use, per period
_LEAST_SHARE = 0.05  # of the giver's quota: less is not worth a move
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class _Use:
    """Of a model since the last transfer."""

    peak_blocks: int = 0
    was_short: bool = False


class QuotaTransfer:
    """Call `update` at every decision; every `period_s` it may move quota from models that idle to models in need.

    The sum of the quotas never grows, so nothing is promised twice; a giver keeps at least its peak use and what its
    longest promised sequence takes. A model in need gets back what it gave, also from models that use it.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_s: float | None = None
        self._uses: dict[str, _Use] = {}

    def update(self, now_s: float, queues: Iterable[ModelQueue]) -> Mapping[str, int]:
        """New quotas in blocks of the models whose quota changes."""
        present = [queue for queue in queues if not queue.removing]
        for queue in present:
            use = self._uses.get(queue.model)
            if use is None:
                use = self._uses[queue.model] = _Use()
            used_blocks = queue.pool.used_blocks(queue.model)
            if used_blocks > use.peak_blocks:
                use.peak_blocks = used_blocks
            if not use.was_short and queue.lacks_quota(_NEEDY):
                use.was_short = True
        if len(self._uses) > len(present):
            self._uses = {queue.model: self._uses[queue.model] for queue in present}
        if self._next_s is None:
            self._next_s = now_s + self._period_s
        if now_s < self._next_s:
            return _NONE
        self._next_s = now_s + self._period_s
        quotas = self._transfer({queue.model: queue for queue in sorted(present, key=lambda queue: queue.model)})
        for use in self._uses.values():
            use.peak_blocks, use.was_short = 0, False
        return quotas

    def _transfer(self, queues: Mapping[str, ModelQueue]) -> Mapping[str, int]:
        before = {model: queue.pool.quota_blocks(model) for model, queue in queues.items()}
        needy = [model for model in queues if self._uses[model].was_short]
        if not needy:
            return _NONE
        quotas = before.copy()
        _give_back(quotas, {model: queue.pool.leased_blocks(model) for model, queue in queues.items()}, needy)
        gifts = {model: self._gift(queues[model], quotas[model]) for model in queues if model not in needy}
        share, rest = divmod(sum(gifts.values()), len(needy))
        for model, blocks in gifts.items():
            quotas[model] -= blocks
        for place, model in enumerate(needy):
            quotas[model] += share + (place < rest)
        return {model: blocks for model, blocks in quotas.items() if blocks != before[model]}

    def _gift(self, queue: ModelQueue, quota_blocks: int) -> int:
        peak_blocks = self._uses[queue.model].peak_blocks
        if peak_blocks > _IDLE * quota_blocks:
            return 0
        gift = int(_GIVE_SHARE * (quota_blocks - max(queue.promised_blocks, peak_blocks)))
        return gift if gift >= max(1, _LEAST_SHARE * quota_blocks) else 0


def _give_back(quotas: dict[str, int], leased: Mapping[str, int], needy: Iterable[str]) -> None:
    """What models hold beyond their leases goes to those in need that hold less than theirs, the largest part first."""
    for model in needy:
        while (lacking := leased[model] - quotas[model]) > 0:
            holder = max(quotas, key=lambda name: quotas[name] - leased[name])
            blocks = min(lacking, quotas[holder] - leased[holder])
            if blocks <= 0:
                return
            quotas[holder] -= blocks
            quotas[model] += blocks
