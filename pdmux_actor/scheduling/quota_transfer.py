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
    """Peak use of a model since the last transfer; its floor holds the longest sequence it has promised to take."""

    floor_blocks: int
    peak_blocks: int = 0
    was_short: bool = False


class QuotaTransfer:
    """Call `update` at every decision; every `period_s` it may move quota from models that idle to models in need.

    The sum of the quotas never grows, so nothing is promised twice; a giver keeps at least its peak use and its floor.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_s: float | None = None
        self._uses: dict[str, _Use] = {}

    def update(self, now_s: float, queues: Iterable[ModelQueue]) -> Mapping[str, int]:
        """New quotas in blocks of the models whose quota changes."""
        present = [queue for queue in queues if not queue.removing]
        for queue in present:
            model, pool = queue.model, queue.pool
            use = self._uses.get(model)
            if use is None:
                use = self._uses[model] = _Use(queue.rows_for(queue.max_len) * _row(queue))
            used_blocks = pool.used_blocks(model)
            if used_blocks > use.peak_blocks:
                use.peak_blocks = used_blocks
            if queue.waiting and used_blocks >= _NEEDY * pool.quota_blocks(model):
                use.was_short = True
        if len(self._uses) > len(present):
            self._uses = {queue.model: self._uses[queue.model] for queue in present}
        if self._next_s is None:
            self._next_s = now_s + self._period_s
        if now_s < self._next_s:
            return _NONE
        self._next_s = now_s + self._period_s
        quotas = self._transfer({queue.model: queue for queue in present})
        for use in self._uses.values():
            use.peak_blocks, use.was_short = 0, False
        return quotas

    def _transfer(self, queues: Mapping[str, ModelQueue]) -> Mapping[str, int]:
        quota = {model: queue.pool.quota_blocks(model) for model, queue in queues.items()}
        needy = [model for model in sorted(queues) if self._uses[model].was_short]
        given = {model: self._gift(model, quota[model]) for model in sorted(queues) if model not in needy}
        total = sum(given.values())
        if not needy or total == 0:
            return {}
        share, rest = divmod(total, len(needy))
        changed = {model: quota[model] - blocks for model, blocks in given.items() if blocks}
        for place, model in enumerate(needy):
            changed[model] = quota[model] + share + (place < rest)
        return changed

    def _gift(self, model: str, quota_blocks: int) -> int:
        use = self._uses[model]
        if use.peak_blocks > _IDLE * quota_blocks:
            return 0
        spare = quota_blocks - max(use.floor_blocks, use.peak_blocks)
        gift = int(_GIVE_SHARE * spare)
        return gift if gift >= _LEAST_SHARE * quota_blocks else 0


def _row(queue: ModelQueue) -> int:
    return queue.info.geometry.blocks_per_row
