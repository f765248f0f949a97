"""Elastic sequence parallelism: LoongServe (Wu et al., SOSP'24, arXiv:2404.09526).

As published: the GPUs form elastic instances, each with all weights. A batch of prompts is spread over all instances
that are free. Then it scales down: its KV stays on as few of them as hold it, which costs nothing, since the ring of
sequence parallelism passes it by; its requests decode there, and the others are free again. Where none is, the one that
holds least KV is emptied onto the others. No KV is kept for later requests (MuxWise §2.3.1).

Assumed, since the paper was not at hand: n instances take an n-th of the time of one, as communication hides behind
attention; an instance is emptied whenever the others have room, where the paper weighs what it costs; its requests stop
while their KV crosses the link, and it takes prompts at once. With `stops_decode` it is not emptied: its requests stop
until the prompts are done, and go on there. Not modelled: decode on several instances at a time, and memory of prompts
until their first token.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from deploy.simulation.engine import EngineDesign, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.decode_only import decode_only
from deploy.simulation.fleet_modes.disaggregated import computed_kv
from deploy.simulation.fleet_modes.entry import FleetMode
from deploy.simulation.fleet_modes.joined_load import joined_load
from deploy.simulation.fleet_modes.split import KvLinks, Split
from deploy.simulation.units import UnitIdentity
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.scheduling.events import Abort
from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec


class _Spread:
    """`LatencyModel` of prompts on several instances, as many as there are when a launch starts."""

    def __init__(self, latency: LatencyModel, num_instances: Callable[[], int]) -> None:
        self._latency = latency
        self._num_instances = num_instances

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self._latency.prefill_s(spec, chunks, sms) / self._num_instances()

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self._latency.mixed_s(spec, chunks, context_tokens, sms) / self._num_instances()


@dataclass(slots=True, eq=False)
class _Decoding:
    """`on_its_way` counts what it waits for: transfers of its KV that have not ended, several if it is sent on before
    it is there, and prompts that have stopped it.
    """

    request: GenerateRequest
    instance: int
    tokens: list[int]
    on_its_way: int = 1
    kv_bytes: int = field(init=False, default=0)


class LoongServeUnit:
    """`split.engines` are the instances; how many of them prefill changes with every batch."""

    def __init__(
        self, identity: UnitIdentity, design: EngineDesign, split: Split, agenda: EventQueue, on_tokens: OnTokens
    ) -> None:
        """`design` is an instance's."""
        self.identity = identity
        self.is_stale = True
        self._agenda = agenda
        self._on_tokens = on_tokens
        self._specs = {m.info.model: m.info.spec for m in design.models}
        self._capacity_bytes = design.total_blocks * design.block_bytes
        self._stops_decode = split.stops_decode
        self._stopped: list[_Decoding] = []
        self._links = KvLinks(bytes_per_s=split.link_bytes_per_s, layerwise=False)
        forgetful = replace(design, settings=replace(design.settings, prefix_cache=False))
        self.design = decode_only(forgetful)
        self._group: list[int] = [0]  # instances of the prompts under way, or of the last ones
        spread = replace(forgetful, latency=_Spread(design.latency, lambda: len(self._group)))
        self._prefill = SimulatedEngine(spread, agenda, self._scale_down)
        self._instances = [
            SimulatedEngine(self.design, agenda, partial(self._pass_on, place)) for place in range(split.engines)
        ]
        self._used_bytes = [0] * split.engines
        self._waiting: deque[GenerateRequest] = deque()
        self._in_prefill: dict[str, GenerateRequest] = {}
        self._decoding: dict[str, _Decoding] = {}

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        self._waiting.append(request)
        self._dispatch_now()
        return True

    def load_report(self) -> LoadReport:
        joined = joined_load([self._prefill.load_report()], [e.load_report() for e in self._instances])
        models = []
        for load in joined.models:
            held = [len(r.prompt_token_ids) for r in self._waiting if r.model == load.model]
            waiting, tokens = load.waiting + len(held), load.waiting_tokens + sum(held)
            models.append(replace(load, waiting=waiting, waiting_tokens=tokens))
        return replace(joined, models=tuple(models))

    def _dispatch_now(self) -> None:
        self._agenda.at(self._agenda.clock.now_s, self._dispatch)

    def _dispatch(self) -> None:
        """Gives the next prompts all instances that are free, once those before them are done."""
        if self._in_prefill or not self._waiting:
            return
        free = [place for place, used in enumerate(self._used_bytes) if not used]
        if not free:
            free = self._stop() if self._stops_decode else self._emptied()
        if not free:
            return
        self._group = free
        budget, batch = self.design.settings.max_batch_tokens, list[GenerateRequest]()
        while self._waiting and self._waiting[0].model == (batch or self._waiting)[0].model:
            budget -= len(self._waiting[0].prompt_token_ids)
            if batch and budget < 0:
                break
            batch.append(self._waiting.popleft())
        self._in_prefill = {request.request_id: request for request in batch}
        one_each = [replace(r, sampling=replace(r.sampling, max_tokens=1)) for r in batch]
        self._prefill.submit_together(one_each)

    def _with_least_kv(self) -> int:
        return min(range(len(self._instances)), key=lambda place: (self._used_bytes[place], place))

    def _stop(self) -> list[int]:
        """Stops the requests of the instance with least KV. Empty: the next prompt has no room there."""
        place, prompt = self._with_least_kv(), self._waiting[0]
        if self._used_bytes[place] + self._kv_bytes(prompt, len(prompt.prompt_token_ids)) > self._capacity_bytes:
            return []
        self._stopped = [decoding for decoding in self._decoding.values() if decoding.instance == place]
        for decoding in self._stopped:
            decoding.on_its_way += 1
            self._instances[place].tell(Abort(decoding.request.request_id))
        return [place]

    def _emptied(self) -> list[int]:
        """Empties the instance with least KV onto those with most room. Empty: they have too little."""
        source = self._with_least_kv()
        used, plan = list(self._used_bytes), list[tuple[_Decoding, int]]()
        others = [place for place in range(len(used)) if place != source]
        for decoding in self._decoding.values():
            if decoding.instance != source:
                continue
            target = min(others, key=lambda place: (used[place], place))
            used[target] += decoding.kv_bytes
            if used[target] > self._capacity_bytes:
                return []
            plan.append((decoding, target))
        for decoding, target in plan:
            self._move(decoding, target)
        return [source]

    def _move(self, decoding: _Decoding, target: int) -> None:
        source, now_s, request = decoding.instance, self._agenda.clock.now_s, decoding.request
        decoding.instance, decoding.on_its_way = target, decoding.on_its_way + 1
        self._used_bytes[source] -= decoding.kv_bytes
        self._used_bytes[target] += decoding.kv_bytes
        self._instances[source].tell(Abort(request.request_id))
        known = len(request.prompt_token_ids) + len(decoding.tokens)
        kv = computed_kv(self._specs[request.model], known, begun_s=None, done_s=now_s)
        self._agenda.at(self._links.arrival_s(source, target, kv), partial(self._join, [decoding]))

    def _join(self, arrived: Sequence[_Decoding]) -> None:
        """Their KV is there, but for that of one that has been sent on meanwhile."""
        by_instance: dict[int, list[GenerateRequest]] = {}
        for decoding in arrived:
            decoding.on_its_way -= 1
            if not decoding.on_its_way:
                rest = replace(decoding.request, output_token_ids=tuple(decoding.tokens))
                by_instance.setdefault(decoding.instance, []).append(rest)
        for place, requests in by_instance.items():
            self._instances[place].submit_together(requests)

    def _scale_down(self, events: Sequence[TokenEvent]) -> None:
        """Prompts are done: each goes on where most of the KV of its batch is, as long as there is room."""
        self.is_stale = True
        passed_on, settled = list[TokenEvent](), list[_Decoding]()
        for event in events:
            request = self._in_prefill.pop(event.request_id)
            goes_on = event.finish is FinishReason.LENGTH and request.sampling.max_tokens > 1
            passed_on.append(TokenEvent(request_id=event.request_id, tokens=event.tokens) if goes_on else event)
            if goes_on:
                settled.append(self._settle(request, [token.token_id for token in event.tokens]))
        if not self._in_prefill:
            settled += self._stopped
            self._stopped = []
            self._dispatch_now()
        self._agenda.at(self._agenda.clock.now_s, partial(self._join, settled))
        self._on_tokens(passed_on)

    def _settle(self, request: GenerateRequest, tokens: list[int]) -> _Decoding:
        kv_bytes = self._kv_bytes(request, len(request.prompt_token_ids) + len(tokens))
        room = [place for place in self._group if self._used_bytes[place] + kv_bytes <= self._capacity_bytes]
        fullest = max(room, key=lambda place: (self._used_bytes[place], -place), default=None)
        place = min(self._group, key=self._used_bytes.__getitem__) if fullest is None else fullest
        decoding = _Decoding(request, place, tokens)
        self._decoding[request.request_id] = decoding
        self._grow(decoding, kv_bytes)
        return decoding

    def _pass_on(self, place: int, events: Sequence[TokenEvent]) -> None:
        """What an instance says of a request that has left it, or is stopped, is of no interest."""
        self.is_stale = True
        passed_on = []
        for event in events:
            decoding = self._decoding.get(event.request_id)
            if decoding is None or decoding.instance != place or decoding.on_its_way:
                continue
            passed_on.append(event)
            decoding.tokens += [token.token_id for token in event.tokens]
            self._grow(decoding, self._kv_bytes(decoding.request, len(event.tokens)))
            if event.finish is not None:
                self._grow(self._decoding.pop(event.request_id), -decoding.kv_bytes)
        if self._waiting and any(event.finish is not None for event in passed_on):
            self._dispatch_now()
        self._on_tokens(passed_on)

    def _grow(self, decoding: _Decoding, more_bytes: int) -> None:
        decoding.kv_bytes += more_bytes
        self._used_bytes[decoding.instance] += more_bytes

    def _kv_bytes(self, request: GenerateRequest, tokens: int) -> int:
        return tokens * self._specs[request.model].kv_bytes_per_token


FLEET_MODE = FleetMode(
    name="loongserve",
    rule="prompts are spread over all free instances; their KV stays on as few as hold it, and these decode",
    source="LoongServe (SOSP'24)",
    make=LoongServeUnit,
)
