"""Shares token blocks among a unit's models: quotas that follow use, and borrowed blocks that come back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings

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

    def may_be_due(self, now_s: float) -> bool:
        return self._next_s is None or now_s >= self._next_s

    def note_growth(self, now_s: float, queue: ModelQueue) -> bool:
        """Does what `update` does where only `queue` can have taken blocks since the last decision and nothing waits.
        False, and nothing is done, where a transfer may be due.
        """
        if self.may_be_due(now_s):
            return False
        use, used_blocks = self._uses[queue.model], queue.pool.used_blocks(queue.model)
        if used_blocks > use.peak_blocks:
            use.peak_blocks = used_blocks
        return True

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


_NO_CLAIMS: Mapping[str, int] = MappingProxyType({})


class BlockSharing:
    def __init__(self, pool: BlockPool, queues: Mapping[str, ModelQueue], settings: SchedulerSettings) -> None:
        self._pool = pool
        self._queues = queues
        self._settings = settings
        self._transfer = QuotaTransfer(settings.quota_period_s) if settings.adapt_quotas else None

    def settle(self, now_s: float) -> None:
        """Moves quota to where it is used, and gives waiting prompts the part of their quota that others borrowed."""
        queues = self._queues.values()
        if self._transfer is not None and (quotas := self._transfer.update(now_s, queues)):
            self._pool.transfer_quotas(quotas)
        waiting = [queue for queue in queues if queue.waiting]
        if not waiting:
            self._pool.set_claims(_NO_CLAIMS)
            return
        self._pool.set_claims({queue.model: queue.claimed_blocks() for queue in waiting})
        for queue in waiting:
            if queue.waiting and not queue.removing:
                self._make_way(queue)
                if queue.waiting:
                    self.reclaim(queue, queue.rows_for(len(queue.waiting[0].token_ids)) + 1)

    def may_transfer(self, now_s: float) -> bool:
        """Says whether quota may move at this decision."""
        return self._transfer is not None and self._transfer.may_be_due(now_s)

    def may_preempt(self) -> bool:
        """Says whether `settle` may take KV from a running sequence for a prompt that waits."""
        for queue in self._queues.values():
            if queue.waiting and not queue.removing:
                num_rows = queue.rows_for(len(queue.waiting[0].token_ids)) + 1
                if self._pool.missing_blocks(queue.model, num_rows) > 0 or any(s.gives_way for s in queue.running):
                    return True
        return False

    def settle_growth(self, now_s: float, queue: ModelQueue) -> None:
        """Does what `settle` does in a stretch of decode: nothing waits, and only `queue` has taken blocks."""
        if self._transfer is not None and not self._transfer.note_growth(now_s, queue):
            self.settle(now_s)

    def _make_way(self, queue: ModelQueue) -> None:
        """Preempts sequences that give way until the next prompt that does not may have KV."""
        settings = self._settings
        while (victim := queue.background_victim) is not None:
            head = queue.waiting[0]
            if head.gives_way or queue.admits(
                head, max_resident=queue.places(settings.max_running_sequences), watermark=settings.kv_watermark
            ):
                return
            queue.preempt(victim)

    def reclaim(self, lender: ModelQueue, num_rows: int) -> None:
        """Preempts borrowers until the lender can have rows within its quota; what is in flight is left to its end."""
        borrowers = [q for q in self._queues.values() if q is not lender]
        while self._pool.missing_blocks(lender.model, num_rows) > 0:
            victims = [q for q in borrowers if q.running and not q.running[-1].in_flight and q.borrowed_blocks > 0]
            if not victims:
                return
            borrower = max(victims, key=lambda q: q.borrowed_blocks)
            borrower.preempt(borrower.background_victim or borrower.running[-1])
