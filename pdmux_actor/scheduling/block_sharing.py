"""Shares token blocks among a unit's models: quotas that follow use, and borrowed blocks that come back."""

from collections.abc import Mapping
from types import MappingProxyType

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.quota_transfer import QuotaTransfer
from pdmux_actor.scheduling.settings import SchedulerSettings

_NO_CLAIMS: Mapping[str, int] = MappingProxyType({})


class BlockSharing:
    def __init__(self, pool: BlockPool, queues: Mapping[str, ModelQueue], settings: SchedulerSettings) -> None:
        self._pool = pool
        self._queues = queues
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
                self.reclaim(queue, queue.rows_for(len(queue.waiting[0].token_ids)) + 1)

    def reclaim(self, lender: ModelQueue, num_rows: int) -> None:
        """Preempts borrowers until the lender can have rows within its quota; what is in flight is left to its end."""
        borrowers = [q for q in self._queues.values() if q is not lender]
        while self._pool.missing_blocks(lender.model, num_rows) > 0:
            victims = [q for q in borrowers if q.running and not q.running[-1].in_flight and q.borrowed_blocks > 0]
            if not victims:
                return
            borrower = max(victims, key=lambda q: q.borrowed_blocks)
            borrower.preempt(borrower.running[-1])
