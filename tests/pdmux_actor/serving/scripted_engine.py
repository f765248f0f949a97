import asyncio

from pdmux_actor.backends.base import EngineCapacity
from pdmux_actor.errors import EngineDied, ModelLoadError
from pdmux_actor.kv.prefix_kv import KeptRows, PrefixRows, PromptStart, RowLayout
from pdmux_actor.lease import LoadProgress, ModelAssignment, SleepingWeights
from pdmux_actor.messages import FinishReason, GenerateRequest, SampledToken, TokenEvent
from placement.launch_limits import LaunchLimits

LAUNCH_LIMITS = LaunchLimits(batch_tokens=8192, sequences=256)
KV_ROW_TOKENS = 16
_LAYOUT = RowLayout(tokens_per_row=KV_ROW_TOKENS, row_bytes=8, dtype="float32")


class ScriptedEngine:
    """An engine whose steps the test decides. Answers aborts and removals as an engine does."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.requests: dict[str, GenerateRequest] = {}  # not finished yet
        self.failing_loads = 0
        self.load_gate = asyncio.Event()
        self.load_gate.set()
        self.host_bytes = 0  # for weights that sleep; each model's are one byte
        self.sleeping: dict[str, SleepingWeights] = {}
        self.reading: dict[str, LoadProgress] = {}
        self._queue: asyncio.Queue = asyncio.Queue()
        self._alive = True
        self.stalled = False
        self.cached_rows: dict[tuple[int, ...], int] = {}  # by prompt
        self.takes_kv = True

    async def start(self) -> EngineCapacity:
        return EngineCapacity(
            device="fake", memory_bytes=1 << 30, block_bytes=1024, total_blocks=1000, launch_limits=LAUNCH_LIMITS
        )

    async def resize_pool(self, total_blocks: int) -> int:
        self.calls.append(("pool", total_blocks))
        return total_blocks

    async def add_model(self, assignment: ModelAssignment) -> int:
        await self.load_gate.wait()
        is_woken = self.sleeping.pop(assignment.model, None) is not None
        self.calls.append(("wake" if is_woken else "add", assignment.model, assignment.quota_blocks))
        if self.failing_loads:
            self.failing_loads -= 1
            raise ModelLoadError(model=assignment.model, reason="broken", remedy="mend it")
        return assignment.max_model_len or 4096

    def load_progress(self, model: str) -> LoadProgress | None:
        return self.reading.get(model)

    async def remove_model(self, model: str, *, sleep: bool = False) -> None:
        self.calls.append(("sleep" if sleep else "remove", model))
        self.sleeping.pop(model, None)
        if sleep and len(self.sleeping) < self.host_bytes:
            self.sleeping[model] = SleepingWeights(model=model, host_bytes=1, wake_s=0.1)
        for request_id in [r.request_id for r in self.requests.values() if r.model == model]:
            self.emit(TokenEvent(request_id=request_id, finish=FinishReason.ERROR, error="has left this unit"))
        await asyncio.sleep(0)

    async def set_quotas(self, quota_blocks) -> dict[str, int]:
        self.calls.append(("quotas", dict(quota_blocks)))
        return {model: 10 * quota for model, quota in quota_blocks.items()}

    async def read_prefix(self, prompt: PromptStart, first_row: int) -> PrefixRows | None:
        if first_row >= self.cached_rows.get(prompt.token_ids, 0):
            return None
        return PrefixRows(first_row=first_row, num_rows=1, layout=_LAYOUT, data=bytes(8))

    async def keep_prefix(self, prompt: PromptStart, rows: PrefixRows | None) -> KeptRows:
        if rows is not None and self.takes_kv:
            self.cached_rows[prompt.token_ids] = rows.first_row + rows.num_rows
        have = self.cached_rows.get(prompt.token_ids, 0)
        return KeptRows(num_rows=have, num_missing=len(prompt.token_ids) // KV_ROW_TOKENS - have)

    async def set_policy(self, policy: str) -> None:
        self.calls.append(("policy", policy))

    def submit(self, request: GenerateRequest) -> None:
        assert request.request_id not in self.requests
        self.requests[request.request_id] = request

    def abort(self, request_id: str) -> None:
        self.calls.append(("abort", request_id))
        if request_id in self.requests:
            self.emit(TokenEvent(request_id=request_id, finish=FinishReason.ABORT))

    def emit(self, *events: TokenEvent) -> None:
        """One engine step."""
        for event in events:
            if event.finish is not None:
                del self.requests[event.request_id]
        self._queue.put_nowait(events)

    def die(self) -> None:
        self._alive = False
        self._queue.put_nowait(EngineDied(pid=1, exit_code=-9))

    async def events(self):
        while (item := await self._queue.get()) is not None:
            if isinstance(item, EngineDied):
                raise item
            yield item

    def asleep(self) -> dict[str, SleepingWeights]:
        return self.sleeping

    def load_report(self) -> None:
        return None

    def is_stalled(self) -> bool:
        return self.stalled

    def is_alive(self) -> bool:
        return self._alive

    async def stop(self) -> None:
        self._alive = False
        self._queue.put_nowait(None)


def step(request_id: str, text: str = "", finish: FinishReason | None = None, **changes) -> TokenEvent:
    """Token ids of printable ASCII in the test vocabulary are code points less 33."""
    tokens = tuple(SampledToken(ord(char) - 33) for char in text)
    return TokenEvent(request_id=request_id, tokens=tokens, finish=finish, **changes)


async def submitted(engine, until, count: int = 1) -> list[str]:
    await until(lambda: len(engine.requests) == count)
    return list(engine.requests)
