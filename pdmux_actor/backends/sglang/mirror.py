"""SGLang's requests as the policies see them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pdmux_actor.backends.sglang.snapshot import SeenBatch, SeenSequence, Snapshot
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.batching import PrefillBatch
from pdmux_actor.scheduling.launch import Chunk
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.sequence import SequenceStatus, TokenSequence
from profiler.latency import ChunkShape


@dataclass(slots=True, eq=False)
class MirrorQueue(ModelQueue):
    """SGLang owns KV and its prefix cache: what may be admitted is what it says is free."""

    free_tokens: int = 0

    def admits(self, sequence: TokenSequence, *, max_resident: int, watermark: float, num_taken: int = 0) -> bool:
        new_tokens = len(sequence.token_ids) - sequence.num_computed_tokens
        return self.num_resident + num_taken < max_resident and new_tokens <= self.free_tokens

    @property
    def share_of_quota_used(self) -> float:
        used_tokens = sum(self.context_tokens)
        return used_tokens / (used_tokens + self.free_tokens) if used_tokens else 0.0

    def num_that_fit(self, num_tokens: int) -> int:
        return self.free_tokens // max(1, num_tokens)

    def cached_prefix(self, sequence: TokenSequence) -> list[int]:
        return []

    def chunk_shape(self, sequence: TokenSequence) -> ChunkShape:
        cached = sequence.num_computed_tokens
        return ChunkShape(len(sequence.token_ids) - cached, cached)


class Mirror:
    """One sequence per request for as long as snapshots show it. Token ids are not known here, only how many."""

    def __init__(self, info: ModelInfo) -> None:
        self.queue = MirrorQueue(info=info, pool=BlockPool(1), caches_prefixes=False)
        self._sequences: dict[str, TokenSequence] = {}

    def update(self, snapshot: Snapshot) -> None:
        queue = self.queue
        queue.free_tokens = snapshot.free_tokens
        queue.waiting.clear()
        queue.waiting.extend(self._each(snapshot.waiting, SequenceStatus.WAITING, snapshot.now_s))
        queue.replace_running(self._each(snapshot.running, SequenceStatus.RUNNING, snapshot.now_s))
        batches = [batch for batch in (snapshot.batch, snapshot.suspended) if batch is not None]
        queue.num_prefilling = sum(len(batch.sequences) for batch in batches)
        seen = {s.request_id for s in (*snapshot.waiting, *snapshot.running)}
        seen.update(s.request_id for batch in batches for s in batch.sequences)
        for request_id in [known for known in self._sequences if known not in seen]:
            del self._sequences[request_id]

    def batch(self, seen: SeenBatch, now_s: float, *, ends: bool = False) -> PrefillBatch:
        chunks = []
        for sequence in self._each(seen.sequences, SequenceStatus.PREFILLING, now_s):
            cached = sequence.num_computed_tokens
            chunks.append(Chunk(sequence, cached, len(sequence.token_ids) - cached))
        return PrefillBatch(
            batch_id=seen.batch_id,
            model=self.queue.model,
            chunks=tuple(chunks),
            num_layers=self.queue.info.spec.num_layers,
            next_layer=seen.next_layer,
            in_flight=ends,
            on_last_slice=ends,
        )

    def _each(self, seen: Iterable[SeenSequence], status: SequenceStatus, now_s: float) -> Iterable[TokenSequence]:
        for one in seen:
            sequence = self._sequences.get(one.request_id)
            if sequence is None:
                sequence = self._sequences[one.request_id] = self._new(one)
            grown = one.known_tokens - len(sequence.token_ids)
            if grown > 0:
                sequence.token_ids.extend((0,) * grown)
                sequence.last_token_s = now_s
                if sequence.first_token_s is None:
                    sequence.first_token_s = now_s
            sequence.status = status
            running = status is SequenceStatus.RUNNING
            sequence.num_computed_tokens = one.known_tokens - 1 if running else one.cached_tokens
            yield sequence

    def _new(self, seen: SeenSequence) -> TokenSequence:
        request = GenerateRequest(
            request_id=seen.request_id,
            model=self.queue.model,
            prompt_token_ids=(),
            sampling=SamplingParams(max_tokens=1),
            slo=Slo(ttft_s=seen.ttft_s, tbt_s=seen.tbt_s),
        )
        return TokenSequence(
            request=request,
            arrival_s=seen.arrival_s,
            token_ids=[0] * seen.prompt_tokens,
            num_prompt_tokens=seen.prompt_tokens,
        )
