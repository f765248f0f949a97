"""Measured end-to-end points of `aiconfigurator-core`, and what is known of how they were measured.

A point is an engine under as many clients as it says, each of which sends its next request when the last one is
answered. Those of InferenceMAX (SemiAnalysis) were measured by scripts that are public: `benchmarks/70b_*.sh` of its
repository in autumn 2025, with ten requests a client, all sent at once, lengths from 80 to 100 % of those named. The
others, of NVIDIA's own Dynamo, tell neither their engines' settings nor their load.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from engines.model_specs import LLAMA_3_8B, LLAMA_3_70B, QWEN3_32B

from profiler.latency import ChunkShape, LatencyModel
from profiler.specs import DeviceSpec, ModelSpec

_MODELS = {
    "meta-llama/Llama-3.1-70B": LLAMA_3_70B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_8B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_3_8B,
}
_SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "a100_sxm": "A100-80G", "l40s": "L40S"}
_OWN_DTYPE = "bfloat16"  # of the checkpoint, where a point names no other
_INFERENCEMAX = "source_file=2026-04-06.csv"
_BYTES_PER_WEIGHT = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5 + 1 / 16}
_WORKSPACE_BYTES = 4 * 1024**3  # of a GPU: activations of a step, CUDA graphs, the collectives' buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an engine was run, as far as it is known. `batch_tokens`: of a step. `waits_steps`: a prompt that does not
    fill nine tenths of a step waits for others so long, while something decodes. `fuses_scaling`: as of OperatorTables.
    `schedules_ahead`: the next step is put together while the GPU is at this one.
    """

    batch_tokens: int = 8192
    waits_steps: int = 0
    fuses_scaling: bool = False
    schedules_ahead: bool = False
    memory_share: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconPoint:
    """`clients` at a time; lengths in tokens, `shortest` of them as a share. `is_public`: the scripts are."""

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
    is_public: bool
    settings: Settings

    @property
    def kv_dtype(self) -> str:
        """Keys and values follow the format of checkpoints that NVIDIA quantised; else they stay as computed."""
        return "fp8" if self.gemm_dtype in ("fp8", "nvfp4") else _OWN_DTYPE

    def kv_tokens(self, device: DeviceSpec) -> int:
        """Tokens whose keys and values fit beside the weights."""
        embeddings = (1 if self.spec.tie_word_embeddings else 2) * self.spec.embedding_bytes
        weights = self.spec.num_projection_params * _BYTES_PER_WEIGHT[self.gemm_dtype] + embeddings
        room = self.settings.memory_share * device.memory_bytes - _WORKSPACE_BYTES - weights / self.num_gpus
        narrow = 0.5 if self.kv_dtype == "fp8" else 1.0
        return int(room / (self.spec.kv_bytes_per_token_per_gpu(self.num_gpus) * narrow))


def silicon_points(folder: Path) -> Iterator[SiliconPoint]:
    """Dense models on one tensor-parallel mesh of a GPU that we know, prefill and decode together: all of them."""
    rows = pd.read_csv(folder / "systems" / "silicon_sample.csv")
    for row in rows.itertuples():
        is_one_mesh = row.mode == "agg" and row.pp_size == 1 and not row.attention_dp_size > 1
        if row.model_path in _MODELS and row.system in _SYSTEMS and is_one_mesh:
            is_public = str(row.silicon_data_source).startswith(_INFERENCEMAX)
            dtype = _OWN_DTYPE if pd.isna(row.gemm_quant_mode) else row.gemm_quant_mode
            point = SiliconPoint(
                model=row.model_path.split("/")[1],
                spec=replace(_MODELS[row.model_path], weights="fp8" if str(dtype).startswith("fp8") else None),
                device=_SYSTEMS[row.system],
                engine=row.backend,
                gemm_dtype=dtype,
                num_gpus=int(row.tp_size),
                clients=int(row.batch_size),
                prompt_tokens=int(row.isl),
                output_tokens=int(row.osl),
                shortest=0.8 if is_public else 1.0,
                ttft_s=row.silicon_ttft_ms * 1e-3,
                tpot_s=row.silicon_tpot_ms * 1e-3,
                is_public=is_public,
                settings=Settings(),
            )
            yield replace(point, settings=_of_inferencemax(point) if is_public else _by_default(point))


def _of_inferencemax(point: SiliconPoint) -> Settings:
    """vLLM with `--max-num-batched-tokens 8192 --async-scheduling`; TensorRT-LLM with `--max_num_tokens 16384`, and
    `batch_wait_timeout_iters: 20` for 1,024 tokens in and out on less than eight GPUs. Both take NVIDIA's
    checkpoints, which bring the scales of activations.
    """
    if point.engine == "vllm":
        return Settings(schedules_ahead=True)
    waits = point.prompt_tokens == point.output_tokens == 1024 and point.num_gpus < 8
    return Settings(batch_tokens=16384, waits_steps=20 if waits else 0, fuses_scaling=True, schedules_ahead=True)


def _by_default(point: SiliconPoint) -> Settings:
    """What the engines do unless told otherwise."""
    return Settings(schedules_ahead=point.engine != "vllm")


_ROUNDS = 6  # each comes nearer: waits for a step are part of a first token
_LEAST, _MOST = 0.3, 3.0  # of a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Factors on prefills and decode steps; `way_s` comes before and after the engine's work on a first token."""

    prefill: float = 1.0
    decode: float = 1.0
    way_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaughtLatency:
    """Implements profiler.latency.LatencyModel."""

    latency: LatencyModel
    lesson: Lesson

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.lesson.prefill * self.latency.prefill_s(spec, chunks, sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.lesson.decode * self.latency.decode_s(spec, context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        """By what each phase would take alone."""
        apart_s = self.latency.prefill_s(spec, chunks, sms) + self.latency.decode_s(spec, context_tokens, sms)
        taught_s = self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)
        return self.latency.mixed_s(spec, chunks, context_tokens, sms) * taught_s / apart_s


def light_points(points: Sequence[SiliconPoint]) -> tuple[SiliconPoint, SiliconPoint]:
    """Those of a mesh with the fewest clients: the shortest prompts, and the longest."""
    fewest = min(p.clients for p in points)
    by_shape = sorted((p for p in points if p.clients == fewest), key=lambda p: (p.prompt_tokens, -p.output_tokens))
    return by_shape[0], by_shape[-1]


def learned(
    short: SiliconPoint, long: SiliconPoint, predicted: Callable[[SiliconPoint, Lesson], tuple[float, float]]
) -> Lesson:
    """`predicted`: TTFT and TPOT (s) of a point by what was learned so far."""
    lesson = Lesson()
    for _ in range(_ROUNDS):
        (short_s, short_tpot_s), (long_s, long_tpot_s) = predicted(short, lesson), predicted(long, lesson)
        decode = (short.tpot_s / short_tpot_s + long.tpot_s / long_tpot_s) / 2
        prefill = 1.0
        if long.prompt_tokens > short.prompt_tokens and long_s > short_s:
            prefill = (long.ttft_s - short.ttft_s) / (long_s - short_s)
        way_s = (short.ttft_s - short_s + long.ttft_s - long_s) / 2
        lesson = Lesson(
            prefill=_bounded(lesson.prefill * prefill),
            decode=_bounded(lesson.decode * decode),
            way_s=max(0.0, lesson.way_s + way_s / 2),
        )
    return lesson


def of_other_gpus(lessons: Sequence[Lesson]) -> Lesson:
    """What an engine shows on other GPUs. Its decode steps are left to the tables: they are the GPU's memory and the
    weights' format, where prefills and a first token's way have more of the engine in them.
    """
    return Lesson(
        prefill=statistics.geometric_mean(lesson.prefill for lesson in lessons),
        way_s=statistics.fmean(lesson.way_s for lesson in lessons),
    )


def _bounded(factor: float) -> float:
    return min(max(factor, _LEAST), _MOST)
