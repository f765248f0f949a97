"""An engine in virtual time for tests: three models of different shapes in one small pool."""

from collections.abc import Iterable, Mapping, Sequence

from pdmux_actor.engine import EngineLoop, Timetable, build_scheduler
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import AttachModel, Event
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec, ModelSpec

BLOCK_BYTES = 1024
PLAIN = SchedulerSettings(prefix_cache=False, adapt_quotas=False, kv_lendable_share=0.0)
TOTAL_BLOCKS = 600


class LinearLatency:
    """Milliseconds that are easy to reason about: prefill scales with SMs, decode hardly does."""

    def __init__(self, prefill_fixed_s: float = 0.001) -> None:
        self._prefill_fixed_s = prefill_fixed_s

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return (self._prefill_fixed_s + 0.0002 * sum(c.new_tokens for c in chunks)) * 2 / sms

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return 0.004 + 0.0001 * len(context_tokens)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)


def make_device(num_sms: int = 2) -> DeviceSpec:
    return DeviceSpec(
        name="test",
        num_sms=num_sms,
        peak_flops_per_s=1e11,
        memory_bandwidth_bytes_per_s=1e10,
        memory_bytes=1 << 30,
        launch_overhead_s=1e-5,
    )


def make_info(
    model: str,
    num_layers: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    eos: int = -1,
    max_model_len: int = 512,
) -> ModelInfo:
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=num_layers,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=512,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        dtype="float32",
    )
    return ModelInfo(
        model=model,
        spec=spec,
        geometry=KvGeometry.of(spec, BLOCK_BYTES),
        eos_token_ids=frozenset({eos}),
        max_model_len=max_model_len,
    )


INFOS: Mapping[str, ModelInfo] = {
    "a": make_info("a"),
    "b": make_info("b", num_layers=3, num_kv_heads=1, head_dim=32),
    "c": make_info("c", num_layers=5, num_kv_heads=4, head_dim=8),
    "short": make_info("short", num_layers=3, num_kv_heads=1, head_dim=32, max_model_len=64),
}


def make_request(
    request_id: str,
    model: str = "a",
    prompt_tokens: int = 8,
    max_tokens: int = 4,
    first: int = 1,
    tbt_s: float = 0.02,
    ttft_s: float = 1.0,
    prior: tuple[int, ...] = (),
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        model=model,
        prompt_token_ids=(first, *(2 + i % 500 for i in range(prompt_tokens - 1))),
        output_token_ids=prior,
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        slo=Slo(ttft_s=ttft_s, tbt_s=tbt_s),
    )


class VirtualEngine:
    """Runs turns until nothing is left, collecting events; `check` runs after every turn."""

    def __init__(
        self,
        events: Iterable[tuple[float, Event]],
        *,
        policy: str = "mux",
        models: Iterable[str] = ("a",),
        quota_blocks: int = 200,
        num_sms: int = 2,
        settings: SchedulerSettings | None = None,
        executor_type: type[SimulatedExecutor] = SimulatedExecutor,
        latency: LinearLatency | None = None,
    ) -> None:
        latency = latency or LinearLatency()
        self.token_events: list[TokenEvent] = []
        self.event_times_s: list[float] = []
        self.executor = executor_type(
            device=make_device(num_sms),
            latency=latency,
            total_blocks=TOTAL_BLOCKS,
            block_bytes=BLOCK_BYTES,
            clock=VirtualClock(),
        )
        scheduler = build_scheduler(self.executor, policy=policy, settings=settings or PLAIN, latency=latency)
        attach = [(0.0, AttachModel(INFOS[m], quota_blocks)) for m in models]
        self.timetable = Timetable([*attach, *events])
        self.loop = EngineLoop(executor=self.executor, scheduler=scheduler, events=self.timetable, outbox=self._collect)

    def _collect(self, events: Sequence[TokenEvent]) -> None:
        self.token_events += events
        self.event_times_s += [self.executor.now()] * len(events)

    @property
    def scheduler(self):
        return self.loop.scheduler

    def run(self, max_turns: int = 20_000) -> "VirtualEngine":
        for turn in range(max_turns):
            if turn % 16 == 0:
                self.scheduler.load_report()  # at any time, as its loop asks for one; it takes longer than a turn
            if self.is_over:
                self._collect(self.scheduler.take_token_events())  # of the last completion
                self.scheduler.check_integrity()
                return self
            self.loop.turn()
            self.scheduler.check_integrity()
        raise AssertionError(f"not over after {max_turns} turns: {self.scheduler.load_report()}")

    @property
    def is_over(self) -> bool:
        if self.timetable.next_due_s() is not None or self.executor.in_flight:
            return False
        return not any(m.running or m.waiting for m in self.scheduler.load_for_gateways().models)

    def tokens_of(self, request_id: str) -> list[int]:
        return [t.token_id for e in self.token_events if e.request_id == request_id for t in e.tokens]

    def ends_of(self, request_id: str) -> list[TokenEvent]:
        return [e for e in self.token_events if e.request_id == request_id and e.finish is not None]
