"""Clients of a closed loop and the engine that answers them, step by step in virtual time.

The replay keeps to what is known of the three engines: vLLM and TensorRT-LLM fill steps with decoding sequences first
and chunks of prompts after them, SGLang runs batches of prompts before it decodes on. A request waits until the keys
and values of its prompt and its answer fit beside those of the others.
"""

import random
from collections import deque
from collections.abc import Sequence

import numpy as np
from accuracy.silicon_points import SiliconPoint

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec

_REQUESTS_PER_CLIENT = 10
_FULL_ENOUGH = 0.9  # of a step, for prompts that wait for others


class _Request:
    """`prompt_tokens` and `output_tokens` are its own."""

    __slots__ = ("first_s", "last_s", "output_tokens", "prefilled", "produced", "prompt_tokens", "sent_s")

    def __init__(self, sent_s: float, prompt_tokens: int, output_tokens: int) -> None:
        self.sent_s, self.prompt_tokens, self.output_tokens = sent_s, prompt_tokens, output_tokens
        self.prefilled = self.produced = 0
        self.first_s = self.last_s = 0.0

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.produced

    @property
    def kv_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Replay:
    """Answers a point's clients."""

    def __init__(self, point: SiliconPoint, latency: LatencyModel, device: DeviceSpec, *, host_s: float) -> None:
        self._point, self._latency, self._sms = point, latency, device.num_sms
        self._host_s = host_s
        self._free_tokens = point.kv_tokens(device)
        self._draw = random.Random(0)
        self._now_s = 0.0
        self._waited_steps = 0
        self._step_began_s = 0.0
        self._waiting: deque[_Request] = deque()
        self._admitted: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._done: list[_Request] = []
        self._unsent = point.clients * _REQUESTS_PER_CLIENT

    def means(self) -> tuple[float, float]:
        """TTFT and TPOT, over requests."""
        for _ in range(self._point.clients):
            self._send()
        while self._waiting or self._admitted or self._running:
            self._admit()
            if self._point.engine == "sglang":
                self._prompts_first()
            else:
                self._mixed_step()
        gaps = [(r.last_s - r.first_s) / (r.produced - 1) for r in self._done if r.produced > 1]
        return float(np.mean([r.first_s - r.sent_s for r in self._done])), float(np.mean(gaps))

    def _send(self) -> None:
        if self._unsent:
            self._unsent -= 1
            prompt, output = (self._length(n) for n in (self._point.prompt_tokens, self._point.output_tokens))
            self._waiting.append(_Request(self._now_s, prompt, output))

    def _length(self, tokens: int) -> int:
        return max(1, round(tokens * self._draw.uniform(self._point.shortest, 1.0)))

    def _admit(self) -> None:
        """In turn. A request that fits nowhere is taken alone: the engine would have been given more memory."""
        while self._waiting:
            is_alone = not self._admitted and not self._running
            head = self._waiting[0]
            if not is_alone and (head.kv_tokens > self._free_tokens or self._comes_late(head)):
                return
            self._free_tokens -= self._waiting[0].kv_tokens
            self._admitted.append(self._waiting.popleft())

    def _comes_late(self, request: _Request) -> bool:
        """An engine that schedules a step while the GPU is at the one before has put it together by then."""
        return self._point.settings.schedules_ahead and request.sent_s > self._step_began_s

    def _mixed_step(self) -> None:
        if self._waits_for_others():
            self._waited_steps += 1
            self._decode(1)
            return
        self._waited_steps = 0
        chunks, ready = self._next_chunks(self._point.settings.batch_tokens - len(self._running))
        if chunks:
            contexts = [r.context for r in self._running]
            self._pass(self._latency.mixed_s(self._point.spec, chunks, contexts, self._sms), 1, ready)
        else:
            self._decode()

    def _waits_for_others(self) -> bool:
        settings = self._point.settings
        tokens = sum(r.prompt_tokens for r in self._admitted) + len(self._running)
        is_little = 0 < tokens < _FULL_ENOUGH * settings.batch_tokens
        return bool(self._admitted and self._running) and is_little and self._waited_steps < settings.waits_steps

    def _prompts_first(self) -> None:
        chunks, ready = self._next_chunks(self._point.settings.batch_tokens)
        if chunks:
            self._pass(self._latency.prefill_s(self._point.spec, chunks, self._sms), 0, ready)
        else:
            self._decode()

    def _next_chunks(self, room: int) -> tuple[list[ChunkShape], list[_Request]]:
        """Fills a step with prompts in turn; those whose last chunk it is leave the queue."""
        chunks, ready = [], []
        while self._admitted and room > 0:
            head = self._admitted[0]
            new = min(room, head.prompt_tokens - head.prefilled)
            chunks.append(ChunkShape(new, head.prefilled))
            head.prefilled += new
            room -= new
            if head.prefilled == head.prompt_tokens:
                ready.append(self._admitted.popleft())
        return chunks, ready

    def _decode(self, most_steps: int | None = None) -> None:
        """All steps until the next sequence ends, at the contexts of the middle one."""
        steps = min(r.output_tokens - r.produced for r in self._running)
        if any(self._comes_late(r) for r in self._waiting):
            most_steps = 1
        steps = steps if most_steps is None else min(steps, most_steps)
        contexts = [r.context + steps // 2 for r in self._running]
        self._pass(steps * self._latency.decode_s(self._point.spec, contexts, self._sms), steps, [])

    def _pass(self, seconds: float, steps: int, ready: Sequence[_Request]) -> None:
        taken_s = seconds + max(1, steps) * self._host_s
        self._step_began_s = self._now_s + taken_s - taken_s / max(1, steps)
        self._now_s += taken_s
        for request in self._running:
            request.produced += steps
        for request in ready:
            request.produced, request.first_s = 1, self._now_s
            self._running.append(request)
        for request in [r for r in self._running if r.produced >= r.output_tokens]:
            request.last_s = self._now_s
            self._free_tokens += request.kv_tokens
            self._done.append(request)
            self._running.remove(request)
            self._send()
