"""Lets KV of prompts' beginnings leave the prefix caches of an engine, and come into them from another engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.prefix_cache import PrefixHash, extend_hashes, prefix_root
from pdmux_actor.kv.prefix_kv import KeptRows, PromptStart
from pdmux_actor.scheduling.adapters import Adapters
from pdmux_actor.scheduling.queues import ModelQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInCache:
    """Says what a cache holds of a prompt: `rows`, of those that `hashes` name. `model` has them in the pool."""

    model: str
    hashes: list[PrefixHash]
    rows: list[int]

    @property
    def kept(self) -> KeptRows:
        return KeptRows(num_rows=len(self.rows), num_missing=len(self.hashes) - len(self.rows))


@dataclass(frozen=True, slots=True)
class RowsToFill:
    """Rows behind those that a cache holds of a prompt, in use until they are `PrefixExchange.fill`ed."""

    prompt: PromptInCache
    rows: list[int]


class PrefixExchange:
    """Rows that come in are cached prefixes that nobody uses, as if a request had left them: whoever needs their
    blocks takes them, and the request that they came for computes what has gone.
    """

    def __init__(self, pool: BlockPool, queues: Mapping[str, ModelQueue], adapters: Adapters) -> None:
        self._pool = pool
        self._queues = queues
        self._adapters = adapters

    def of(self, prompt: PromptStart) -> PromptInCache | None:
        """None: the engine shares no KV of this prompt."""
        adapter = self._adapters.in_use.get(prompt.model)
        queue = self._queues.get(prompt.model if adapter is None else adapter.base)
        if queue is None or queue.removing or not queue.caches_prefixes:
            return None
        limit = queue.info.own_kv_beyond_tokens
        if limit is not None and len(prompt.token_ids) > limit:
            return None
        root = prefix_root(prompt.cache_salt, "" if adapter is None else adapter.kv_space)
        hashes: list[PrefixHash] = []
        extend_hashes(hashes, prompt.token_ids, queue.info.geometry.tokens_per_row, root)
        return PromptInCache(model=queue.model, hashes=hashes, rows=self._pool.match_prefix(queue.model, hashes))

    def room_for(self, prompt: PromptInCache, first_row: int, num_rows: int) -> RowsToFill | None:
        """Takes rows for those of `[first_row, first_row + num_rows)` that are not there. None: there is no room, the
        rows before them are not there, or none is wanted.
        """
        known, end = len(prompt.rows), min(first_row + num_rows, len(prompt.hashes))
        if known < first_row or end <= known:
            return None
        self._pool.reuse_rows(prompt.model, prompt.rows)  # else the new ones might take their places
        rows = self._pool.allocate_rows(prompt.model, end - known)
        if rows is None:
            self._pool.free_rows(prompt.model, prompt.rows)
            return None
        return RowsToFill(prompt, rows)

    def fill(self, room: RowsToFill) -> KeptRows:
        """The rows have their KV now."""
        prompt, known = room.prompt, len(room.prompt.rows)
        rows = [*prompt.rows, *room.rows]
        self._pool.cache_prefix(prompt.model, prompt.hashes[: len(rows)], rows, num_reused=known)
        self._pool.free_rows(prompt.model, rows)
        return KeptRows(num_rows=len(rows), num_missing=len(prompt.hashes) - len(rows))
