"""Knows the adapters of a unit's models: in whose launches they are, and what they may hold together."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pdmux_actor.messages import ModelLoad
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import AdapterInUse, TokenSequence
from pdmux_actor.scheduling.served_counts import ServedCounts

# Of a queue's load, what each of its models has a part of: now, and since it came.
_DIVIDED = ("running", "waiting", "used_blocks", "quota_blocks", "waiting_tokens", "giving_way")
_COUNTED: Mapping[str, str] = MappingProxyType(
    {
        "prefix_hit_tokens_total": "prefix_hit_tokens",
        "preemptions_total": "preemptions",
        "prompt_tokens_total": "prompt_tokens",
        "output_tokens_total": "output_tokens",
        "requests_ended_total": "requests",
        "requests_in_time_total": "requests_met",
    }
)


class Adapters:
    """A base and its adapters have one queue and one quota in the pool: the sum of their leases."""

    def __init__(self) -> None:
        self.in_use: dict[str, AdapterInUse] = {}  # those that take requests, by name
        self._bases: dict[str, str] = {}  # those that leave have one, too
        self._leased_blocks: dict[str, int] = {}  # by the name that is served: bases, too
        self._loads = 0

    def attach(self, model: str, queue: ModelQueue, quota_blocks: int) -> None:
        assert model not in self._bases, f"adapter {model} is attached"
        self._loads += 1
        # What an adapter of the same name computed with other weights is not this one's.
        self.in_use[model] = AdapterInUse(queue.model, f"{model} {self._loads}")
        self._bases[model] = queue.model
        self._leased_blocks[model] = quota_blocks
        queue.adapter_counts[model] = ServedCounts()

    def leave(self, model: str) -> str | None:
        """Takes no more requests of an adapter. Returns its base, None if it is no adapter."""
        self.in_use.pop(model, None)
        return self._bases.get(model)

    def gone(self, queue: ModelQueue, in_batches: Iterable[TokenSequence]) -> list[str]:
        """Forgets those that leave and have no sequence any more, and returns them."""
        leaving = queue.adapter_counts.keys() - self.in_use.keys()
        if not leaving:
            return []
        gone = sorted(leaving - {s.request.model for s in (*queue.sequences(), *in_batches)})
        for name in gone:
            del self._bases[name], self._leased_blocks[name]
            former = queue.former_counts = queue.former_counts or ServedCounts()
            former.add(queue.adapter_counts.pop(name))
        return gone

    def lease(self, quota_blocks: Mapping[str, int], queues: Iterable[ModelQueue]) -> dict[str, int]:
        """Notes the quotas of models and adapters that are here. Returns those of `queues` for the pool. What names a
        base names all of its adapters that stay: the others' part is the base's again.
        """
        before, self._leased_blocks, of_queues = self._leased_blocks, {}, {}
        for queue in queues:
            is_named, names = queue.model in quota_blocks, (queue.model, *queue.adapter_counts)
            for name in names:
                self._leased_blocks[name] = quota_blocks.get(name, 0 if is_named else before.get(name, 0))
            of_queues[queue.model] = sum(self._leased_blocks[name] for name in names)
        return of_queues

    def split(self, load: ModelLoad, queue: ModelQueue, in_batches: Iterable[TokenSequence]) -> list[ModelLoad]:
        """Divides what a queue holds among the base, which comes first, and its adapters. Cached prefixes are the
        base's, and so is what quota was lent; what adapters that have left did is nobody's.
        """
        resident = [*queue.partial, *queue.running, *in_batches]
        loads = []
        for name, counts in queue.adapter_counts.items():
            own = [s for s in resident if s.request.model == name]
            waiting = [s for s in queue.waiting if s.request.model == name]
            begun = [s for s in queue.partial if s.request.model == name]
            used_blocks = len({row for s in own for row in s.rows}) * load.blocks_per_row
            quota_blocks = self._leased_blocks[name]
            loads.append(
                ModelLoad(
                    model=name,
                    running=len(own),
                    waiting=len(waiting),
                    giving_way=sum(s.gives_way for s in (*own, *waiting)),
                    used_blocks=used_blocks,
                    quota_blocks=quota_blocks,
                    borrowed_blocks=max(0, used_blocks - quota_blocks),
                    waiting_tokens=sum(len(s.token_ids) for s in waiting) + sum(s.num_uncomputed_tokens for s in begun),
                    blocks_per_row=load.blocks_per_row,
                    tokens_per_row=load.tokens_per_row,
                    **_totals((counts,)),
                )
            )
        return [_less(load, loads, queue.counts_of_others), *loads]


def _totals(counts: Collection[ServedCounts]) -> dict[str, Any]:
    return {name: sum([getattr(one, counted) for one in counts]) for name, counted in _COUNTED.items()}


def _less(load: ModelLoad, adapters: Collection[ModelLoad], counts: Collection[ServedCounts]) -> ModelLoad:
    """What is left of a queue's load when its adapters' are taken away, and what they counted."""
    left = {name: getattr(load, name) - sum([getattr(one, name) for one in adapters]) for name in _DIVIDED}
    totals = {name: getattr(load, name) - total for name, total in _totals(counts).items()}
    borrowed_blocks = max(0, left["used_blocks"] - left["quota_blocks"])
    return replace(load, **left, **totals, borrowed_blocks=borrowed_blocks)
