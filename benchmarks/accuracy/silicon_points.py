"""Measured end-to-end points of `aiconfigurator-core`, and what a latency model says of them.

A point is an engine under as many clients as it says, each of which sends its next request when the last one is
answered. The replay keeps to what is known of the three engines: vLLM and TensorRT-LLM fill steps of 8,192 tokens
with decoding sequences first and chunks of prompts after them, SGLang runs batches of prompts before it decodes on.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from engines.model_specs import LLAMA_3_8B, LLAMA_3_70B, QWEN3_32B

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import ModelSpec

BATCH_TOKENS = 8192
_REQUESTS_PER_CLIENT = 10  # as InferenceMAX sends; all clients start at once, and all requests count
_MODELS = {
    "meta-llama/Llama-3.1-70B": LLAMA_3_70B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_8B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_3_8B,
}
_SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "a100_sxm": "A100-80G", "l40s": "L40S"}
_OWN_DTYPE = "bfloat16"  # of the checkpoint, where a point names no other
_LENGTHS_VARY = "source_file=2026-04-06.csv"  # InferenceMAX draws lengths from 80 to 100 % of those that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconPoint:
    """`clients` at a time; lengths in tokens, `shortest` of them as a share."""

    model: str
    spec: ModelSpec
    device: str
    engine: str
    gemm_dtype: str
    num_gpus: int
    clients: int
    prompt_tokens: int
    output_tokens: int
    shortest: float
    ttft_s: float
    tpot_s: float

    @property
    def kv_dtype(self) -> str:
        """Keys and values follow the format of checkpoints that NVIDIA quantised; else they stay as computed."""
        return "fp8" if self.gemm_dtype in ("fp8", "nvfp4") else _OWN_DTYPE


def silicon_points(folder: Path) -> Iterator[SiliconPoint]:
    """Dense models on one tensor-parallel mesh of a GPU that we know, prefill and decode together: all of them."""
    rows = pd.read_csv(folder / "systems" / "silicon_sample.csv")
    for row in rows.itertuples():
        is_one_mesh = row.mode == "agg" and row.pp_size == 1 and not row.attention_dp_size > 1
        if row.model_path in _MODELS and row.system in _SYSTEMS and is_one_mesh:
            yield SiliconPoint(
                model=row.model_path.split("/")[1],
                spec=_MODELS[row.model_path],
                device=_SYSTEMS[row.system],
                engine=row.backend,
                gemm_dtype=_OWN_DTYPE if pd.isna(row.gemm_quant_mode) else row.gemm_quant_mode,
                num_gpus=int(row.tp_size),
                clients=int(row.batch_size),
                prompt_tokens=int(row.isl),
                output_tokens=int(row.osl),
                shortest=0.8 if str(row.silicon_data_source).startswith(_LENGTHS_VARY) else 1.0,
                ttft_s=row.silicon_ttft_ms * 1e-3,
                tpot_s=row.silicon_tpot_ms * 1e-3,
            )


@dataclass(slots=True, eq=False)
class _Request:
    sent_s: float
    prompt_tokens: int
    output_tokens: int
    prefilled: int = 0
    produced: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.produced


class Replay:
    """Answers a point's clients in virtual time, step by step."""

    def __init__(self, point: SiliconPoint, latency: LatencyModel, *, sms: int, host_s: float) -> None:
        self._point, self._latency, self._sms, self._host_s = point, latency, sms, host_s
        self._draw = random.Random(0)
        self._now_s = 0.0
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._done: list[_Request] = []
        self._unsent = point.clients * _REQUESTS_PER_CLIENT

    def means(self) -> tuple[float, float]:
        """TTFT and TPOT, over requests."""
        for _ in range(self._point.clients):
            self._send()
        while self._waiting or self._running:
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

    def _mixed_step(self) -> None:
        chunks, ready = self._next_chunks(BATCH_TOKENS - len(self._running))
        if chunks:
            contexts = [r.context for r in self._running]
            self._pass(self._latency.mixed_s(self._point.spec, chunks, contexts, self._sms), 1, ready)
        else:
            self._decode()

    def _prompts_first(self) -> None:
        chunks, ready = self._next_chunks(BATCH_TOKENS)
        if chunks:
            self._pass(self._latency.prefill_s(self._point.spec, chunks, self._sms), 0, ready)
        else:
            self._decode()

    def _next_chunks(self, room: int) -> tuple[list[ChunkShape], list[_Request]]:
        """Fills a step with prompts in turn; those whose last chunk it is leave the queue."""
        chunks, ready = [], []
        while self._waiting and room > 0:
            head = self._waiting[0]
            new = min(room, head.prompt_tokens - head.prefilled)
            chunks.append(ChunkShape(new, head.prefilled))
            head.prefilled += new
            room -= new
            if head.prefilled == head.prompt_tokens:
                ready.append(self._waiting.popleft())
        return chunks, ready

    def _decode(self) -> None:
        """All steps until the next sequence ends, at the contexts of the middle one."""
        steps = min(r.output_tokens - r.produced for r in self._running)
        contexts = [r.context + steps // 2 for r in self._running]
        self._pass(steps * self._latency.decode_s(self._point.spec, contexts, self._sms), steps, [])

    def _pass(self, seconds: float, steps: int, ready: Sequence[_Request]) -> None:
        self._now_s += seconds + max(1, steps) * self._host_s
        for request in self._running:
            request.produced += steps
        for request in ready:
            request.produced, request.first_s = 1, self._now_s
            self._running.append(request)
        for request in [r for r in self._running if r.produced >= r.output_tokens]:
            request.last_s = self._now_s
            self._done.append(request)
            self._running.remove(request)
            self._send()
