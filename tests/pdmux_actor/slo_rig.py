"""A unit in virtual time that is asked for more than it can give: Llama 8B on an H200 by the roofline."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdmux_actor.engine import EngineLoop, Timetable, build_scheduler
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import Arrival, AttachModel
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.devices import device_named
from profiler.latency import LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec
from traces.timeliness import SloTarget, is_in_time

BLOCK_BYTES = 256 * 1024
POOL_BLOCKS = (100 << 30) // BLOCK_BYTES
CHAT = Slo(ttft_s=1.0, tbt_s=0.05)
LLAMA_8B = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_position_embeddings=131_072,
    tie_word_embeddings=False,
    dtype="bfloat16",
)


@dataclass(slots=True)
class Asked:
    """A request of a run, and when its tokens came."""

    who: str
    request: GenerateRequest
    at_s: float
    token_times_s: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.at_s if self.token_times_s else float("inf")

    @property
    def is_first_in_time(self) -> bool:
        return self.ttft_s <= self.request.slo.ttft_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]

    @property
    def is_in_time(self) -> bool:
        slo = self.request.slo
        target = SloTarget(ttft_s=slo.ttft_s, tbt_s=slo.tbt_s)
        return self.finish is FinishReason.LENGTH and is_in_time(self.ttft_s, self.gaps_s, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Poisson arrivals of one kind of request. Lengths vary by `spread` of what is given."""

    who: str
    rate_per_s: float
    prompt_tokens: int = 800
    output_tokens: int = 120
    slo: Slo = CHAT
    model: str = "m"
    from_s: float = 0.0
    until_s: float = 15.0
    most: int | None = None
    spread: float = 0.5

    def requests(self) -> list[Asked]:
        draw, least, most = random.Random(self.who), 1 - self.spread, 1 + self.spread
        asked: list[Asked] = []
        at_s = self.from_s
        while (at_s := at_s + draw.expovariate(self.rate_per_s)) < self.until_s:
            if self.most is not None and len(asked) >= self.most:
                break
            prompt_tokens = int(self.prompt_tokens * draw.uniform(least, most))
            start = draw.randrange(1000, 100_000)
            request = GenerateRequest(
                request_id=f"{self.who}/{len(asked)}",
                model=self.model,
                prompt_token_ids=(start, len(asked), *([7] * (prompt_tokens - 2))),
                sampling=SamplingParams(
                    max_tokens=max(1, int(self.output_tokens * draw.uniform(least, most))), temperature=0.0
                ),
                slo=self.slo,
            )
            asked.append(Asked(self.who, request, at_s))
        return asked


class StalledAtFirst:
    """Decode steps on all SMs take three times as long at first, once for each octave of batches."""

    def __init__(self, latency: LatencyModel, device: DeviceSpec) -> None:
        self._latency, self._num_sms = latency, device.num_sms
        self._seen: set[int] = set()
        self.prefill_s, self.mixed_s = latency.prefill_s, latency.mixed_s

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        step_s, octave = self._latency.decode_s(spec, context_tokens, sms), len(context_tokens).bit_length()
        if sms < self._num_sms or octave in self._seen:
            return step_s
        self._seen.add(octave)
        return 3.0 * step_s


def serve(
    clients: Iterable[Client],
    *,
    policy: str = "mux",
    models: Sequence[str] = ("m",),
    limit_s: float = 300.0,
    latency: LatencyModel | None = None,
    device: DeviceSpec | None = None,
) -> Mapping[str, list[Asked]]:
    """Everything that was asked, by client, when all of it has ended or `limit_s` of virtual time have passed.

    `latency` is what launches take in truth; policies begin with the roofline in any case. `device` None is an H200.
    """
    asked = {one.request.request_id: one for client in clients for one in client.requests()}
    device, clock = device or device_named("H200"), VirtualClock()
    executor = SimulatedExecutor(
        device=device,
        latency=latency or RooflineLatency(device),
        total_blocks=POOL_BLOCKS,
        block_bytes=BLOCK_BYTES,
        clock=clock,
        host_s=0.5e-3,
    )
    settings = SchedulerSettings(max_running_sequences=256)
    scheduler = build_scheduler(
        executor, policy=policy, settings=settings, latency=RooflineLatency(device), names_blocks=False
    )
    infos = [
        ModelInfo(
            model=model,
            spec=LLAMA_8B,
            geometry=KvGeometry.of(LLAMA_8B, BLOCK_BYTES),
            eos_token_ids=frozenset(),
            max_model_len=131_072,
        )
        for model in models
    ]
    attach = [(0.0, AttachModel(info, POOL_BLOCKS // len(infos))) for info in infos]
    open_ids = set(asked)

    def take(events: Sequence[TokenEvent]) -> None:
        for event in events:
            one = asked[event.request_id]
            one.token_times_s += [clock.now()] * len(event.tokens)
            if event.finish is not None:
                assert one.finish is None, f"{event.request_id} ended twice"
                one.finish = event.finish
                open_ids.discard(event.request_id)

    timetable = Timetable([*attach, *((one.at_s, Arrival(one.request)) for one in asked.values())])
    loop = EngineLoop(executor=executor, scheduler=scheduler, events=timetable, outbox=take)
    while open_ids and clock.now() < limit_s:
        loop.turn()
    scheduler.check_integrity()
    by_client: dict[str, list[Asked]] = {}
    for one in asked.values():
        by_client.setdefault(one.who, []).append(one)
    return by_client


def share_in_time(asked: Sequence[Asked]) -> float:
    return sum(one.is_in_time for one in asked) / len(asked)


def share_of_first_in_time(asked: Sequence[Asked]) -> float:
    return sum(one.is_first_in_time for one in asked) / len(asked)
