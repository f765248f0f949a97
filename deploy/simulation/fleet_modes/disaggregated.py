"""Prefill and decode on GPUs of their own, any number of each: DistServe (arXiv:2401.09670), Splitwise
(arXiv:2311.18677), and as products SGLang-PD and Dynamo's xPyD.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from deploy.simulation.engine import EngineDesign, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.decode_only import decode_only
from deploy.simulation.fleet_modes.entry import FleetMode
from deploy.simulation.fleet_modes.joined_load import joined_load
from deploy.simulation.fleet_modes.split import ComputedKv, KvLinks, Split
from deploy.simulation.units import UnitIdentity
from pdmux_actor.messages import FinishReason, GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.scheduling.launch import DecodeStep, LaunchCompletion
from profiler.latency import LatencyModel
from profiler.specs import ModelSpec
from router.routing.prefix_index import PrefixIndex, prefix_names


@dataclass(slots=True, eq=False)
class _InPrefill:
    request: GenerateRequest
    begun_s: float | None = None  # when its first launch started; known once that has ended


class DisaggregatedUnit:
    """Prompts run on a prefill engine up to the first token, which the client gets at once; their KV crosses the link
    to the decode engine with the fewest prompt tokens, which makes the other tokens.

    All of a prompt's KV is sent, also what the receiver may have cached. A decode engine without room lets what has
    come wait in its queue; the sender keeps nothing back for it.
    """

    def __init__(
        self,
        identity: UnitIdentity,
        design: EngineDesign,
        split: Split,
        agenda: EventQueue,
        on_tokens: OnTokens,
        *,
        decode_latencies: Sequence[LatencyModel] | None = None,
    ) -> None:
        """`design` is a prefill engine's; a decode engine's is the same but for what arrives, and for its latency where
        `decode_latencies` has one of each.
        """
        self.identity = identity
        self.design = decode_only(design)
        self.is_stale = True
        self._agenda = agenda
        self._on_tokens = on_tokens
        self._specs = {m.info.model: m.info.spec for m in design.models}
        self._links = KvLinks(bytes_per_s=split.link_bytes_per_s, layerwise=split.layerwise)
        self._choice = PrefillChoice(split.prefill)
        self._in_prefill: dict[str, _InPrefill] = {}
        self._held_tokens = [0] * split.decode  # prompt tokens of the requests that a decode engine has
        self._in_decode: dict[str, tuple[int, int]] = {}  # engine, prompt tokens
        on_launch = self._launched if split.layerwise else None
        self._prefills = [
            SimulatedEngine(design, agenda, partial(self._hand_over, engine), on_launch=on_launch)
            for engine in range(split.prefill)
        ]
        latencies = decode_latencies or [design.latency] * split.decode
        self._decodes = [
            SimulatedEngine(decode_only(replace(design, latency=latency)), agenda, self._pass_on)
            for latency in latencies
        ]

    def submit(self, request: GenerateRequest) -> bool:
        self.is_stale = True
        self._in_prefill[request.request_id] = _InPrefill(request)
        engine = self._choice.choose(request.request_id, request.model, request.prompt_token_ids)
        self._prefills[engine].submit(replace(request, sampling=replace(request.sampling, max_tokens=1)))
        return True

    def least_tokens_ahead(self) -> int:
        """Returns the prompt tokens to compute before a new prompt, on the prefill engine that has the fewest."""
        return self._choice.least_ahead()

    def decodes_on(self, engine: int) -> tuple[int, int]:
        """Returns how many requests a decode engine has, what is on its way included, and their prompt tokens."""
        return sum(held == engine for held, _ in self._in_decode.values()), self._held_tokens[engine]

    def is_decoding(self, engine: int) -> bool:
        return self._decodes[engine].is_busy

    def join(self, engine: int, rest: GenerateRequest) -> None:
        """Lets a decode engine go on with a request whose KV it has."""
        self._hold(engine, rest)
        self._agenda.at(self._agenda.clock.now_s, _submission(self._decodes[engine], rest))

    def load_report(self) -> LoadReport:
        return self.load_report_beside(())

    def load_report_beside(self, others: Sequence[SimulatedEngine]) -> LoadReport:
        """Returns the unit's load with other engines that run prompts."""
        prefills = [e.load_report() for e in (*self._prefills, *others)]
        return joined_load(prefills, [e.load_report() for e in self._decodes])

    def _launched(self, done: LaunchCompletion) -> None:
        if not isinstance(done.launch, DecodeStep):
            for chunk in done.launch.chunks:
                waiting = self._in_prefill.get(chunk.sequence.request.request_id)
                if waiting is not None and waiting.begun_s is None:
                    waiting.begun_s = done.started_s

    def _hand_over(self, sender: int, events: Sequence[TokenEvent]) -> None:
        """First tokens go to the client at once, the rest of a request after its KV has crossed the link."""
        self.is_stale = True
        passed_on = []
        for event in events:
            self._choice.done(event.request_id)
            prefilled = self._in_prefill.pop(event.request_id)
            goes_on = event.finish is FinishReason.LENGTH and prefilled.request.sampling.max_tokens > 1
            passed_on.append(TokenEvent(request_id=event.request_id, tokens=event.tokens) if goes_on else event)
            if goes_on:
                first = tuple(token.token_id for token in event.tokens)
                self._send(sender, prefilled, replace(prefilled.request, output_token_ids=first))
        self._on_tokens(passed_on)

    def _send(self, sender: int, prefilled: _InPrefill, rest: GenerateRequest) -> None:
        now_s, tokens = self._agenda.clock.now_s, len(rest.prompt_token_ids)
        receiver = min(range(len(self._decodes)), key=lambda engine: (self._held_tokens[engine], engine))
        self._hold(receiver, rest)
        kv = computed_kv(self._specs[rest.model], tokens, begun_s=prefilled.begun_s, done_s=now_s)
        self._agenda.at(self._links.arrival_s(sender, receiver, kv), _submission(self._decodes[receiver], rest))

    def _hold(self, engine: int, rest: GenerateRequest) -> None:
        tokens = len(rest.prompt_token_ids)
        self._held_tokens[engine] += tokens
        self._in_decode[rest.request_id] = engine, tokens

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        for event in events:
            if event.finish is not None:
                engine, tokens = self._in_decode.pop(event.request_id)
                self._held_tokens[engine] -= tokens
        self._on_tokens(events)


def computed_kv(spec: ModelSpec, tokens: int, *, begun_s: float | None, done_s: float) -> ComputedKv:
    """`begun_s` None: it is not known, and its KV is taken to be ready at the end."""
    return ComputedKv(
        num_bytes=tokens * spec.kv_bytes_per_token,
        num_layers=spec.num_layers,
        begun_s=done_s if begun_s is None else begun_s,
        done_s=done_s,
    )


def _submission(engine: SimulatedEngine, request: GenerateRequest) -> Callable[[], None]:
    return lambda: engine.submit(request)


FLEET_MODE = FleetMode(
    name="disaggregated",
    rule="prefill and decode engines of their own; a prompt's KV crosses a link, one transfer at a time",
    source="DistServe (arXiv:2401.09670), SGLang-PD, Dynamo xPyD",
    make=DisaggregatedUnit,
)


class PrefillChoice:
    """Counts, for each engine, prompt tokens without KV of the requests it has, and of the new one those that its
    prefix cache does not hold: Dynamo's KV-aware routing and SGLang's cache-aware router, in one unit.
    """

    def __init__(self, num_engines: int) -> None:
        self._prefixes = PrefixIndex()
        self._ahead = [0] * num_engines
        self._of_request: dict[str, tuple[int, int]] = {}  # engine, tokens to compute

    def choose(self, request_id: str, model: str, prompt: tuple[int, ...]) -> int:
        """Returns the engine, which has the request from now on."""
        engine, tokens = 0, len(prompt)
        if len(self._ahead) > 1:
            names = prefix_names(model, prompt)
            matched = self._prefixes.matched_tokens(names, model=model, conversation="", tokens=tokens)
            fresh = [tokens - matched.get(str(e), 0) for e in range(len(self._ahead))]
            engine = min(range(len(self._ahead)), key=lambda e: (self._ahead[e] + fresh[e], e))
            tokens = fresh[engine]
            self._prefixes.record(names, str(engine), model=model, conversation="", tokens=len(prompt))
        self._ahead[engine] += tokens
        self._of_request[request_id] = engine, tokens
        return engine

    def least_ahead(self) -> int:
        return min(self._ahead)

    def done(self, request_id: str) -> None:
        """Its first token is there."""
        engine, tokens = self._of_request.pop(request_id)
        self._ahead[engine] -= tokens
