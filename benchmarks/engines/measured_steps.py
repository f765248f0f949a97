"""What virtual time needs to know of a machine, measured once and kept in a file: so a virtual run can be repeated."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from engines.solo_steps import SoloSteps

from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec, ModelSpec

_LENGTH_SPREAD = 0.8  # sigma of the logarithm: a batch in service has sequences of all ages
_DECODES = ((1, 64), (1, 512), (2, 128), (4, 128), (8, 64), (8, 512), (12, 128), (16, 128), (24, 128), (32, 64))
_PREFILLS = ((1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (1, 768), (2, 64), (4, 32))


@dataclass(frozen=True, slots=True)
class StepLatency:
    """profiler.latency.LatencyModel: a constant and terms linear in sequences, their contexts, new tokens and chunks.

    Measured with one model; others are taken to have layers like its own. Coefficients by number of cores.
    """

    num_layers: int
    base_s: Mapping[int, float]
    per_sequence_s: Mapping[int, float]
    per_context_token_s: Mapping[int, float]
    per_new_token_s: Mapping[int, float]
    per_seen_pair_s: Mapping[int, float]
    per_chunk_s: Mapping[int, float] = field(default_factory=dict)

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return self.mixed_s(spec, (), context_tokens, sms)

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        new_tokens = sum(chunk.new_tokens for chunk in chunks)
        pairs = sum(chunk.new_tokens * (chunk.context_tokens + chunk.new_tokens / 2) for chunk in chunks)
        measured_s = (
            self.base_s[sms]
            + self.per_sequence_s[sms] * len(context_tokens)
            + self.per_context_token_s[sms] * sum(context_tokens)
            + self.per_new_token_s[sms] * new_tokens
            + self.per_seen_pair_s[sms] * pairs
            + self.per_chunk_s.get(sms, 0.0) * len(chunks)
        )
        return measured_s * spec.num_layers / self.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """`*_slowdown`: how much longer a launch takes while the other lane is busy on the other cores."""

    device: DeviceSpec
    latency: StepLatency
    prefill_slowdown: float
    decode_slowdown: float
    points_ms: Mapping[str, float] = field(default_factory=dict)  # what the latency was fitted to

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "MeasuredSteps":
        content = json.loads(path.read_text(encoding="utf-8"))
        latency = content["latency"]
        num_layers = latency.pop("num_layers")
        by_cores = {name: {int(cores): s for cores, s in column.items()} for name, column in latency.items()}
        return cls(
            device=DeviceSpec(**content["device"]),
            latency=StepLatency(num_layers=num_layers, **by_cores),
            prefill_slowdown=content["prefill_slowdown"],
            decode_slowdown=content["decode_slowdown"],
            points_ms=content["points_ms"],
        )


class ModelledSteps:
    """solo_steps.StepTimes by a `StepLatency`: targets and budgets of the same world as the virtual steps."""

    def __init__(self, latency: StepLatency, spec: ModelSpec, num_cores: int) -> None:
        self._latency = latency
        self._spec = spec
        self._cores = num_cores

    def step_s(self, batch: int, context_tokens: int) -> float:
        return self._latency.decode_s(self._spec, [context_tokens] * batch, self._cores)

    def prefill_s(self, tokens: int) -> float:
        return self._latency.prefill_s(self._spec, [ChunkShape(tokens)], self._cores)

    def mixed_s(self, batch: int, context_tokens: int, chunk_tokens: int) -> float:
        return self._latency.mixed_s(self._spec, [ChunkShape(chunk_tokens)], [context_tokens] * batch, self._cores)


def measure_steps(solo: SoloSteps) -> MeasuredSteps:
    """Least squares over some thirty launches per number of cores, each with its relative error as weight."""
    fitted: dict[int, list[float]] = {}
    points_ms: dict[str, float] = {}
    total = solo.device.num_sms
    for cores in range(1, total + 1):
        rows, taken_s = [], []
        for batch, context in _DECODES:
            rows.append([1.0, batch, batch * context, 0.0, 0.0, 0.0])
            taken_s.append(solo.decode_s(batch, context, cores, spread=_LENGTH_SPREAD))
            points_ms[f"decode {batch} x {context} on {cores}"] = 1e3 * taken_s[-1]
        for prompts, tokens in _PREFILLS:
            rows.append([1.0, 0.0, 0.0, prompts * tokens, prompts * tokens * tokens / 2, prompts])
            taken_s.append(solo.prefill_s(tokens, cores, prompts=prompts))
            points_ms[f"prefill {prompts} x {tokens} on {cores}"] = 1e3 * taken_s[-1]
        if cores == total:
            for batch, tokens in ((1, 16), (8, 16), (8, 64), (16, 32)):
                rows.append([1.0, batch, batch * 128, tokens, tokens * tokens / 2, 1.0])
                taken_s.append(solo.mixed_s(batch, 128, tokens))
                points_ms[f"mixed {batch} x 128 and {tokens} on {cores}"] = 1e3 * taken_s[-1]
        weights = 1 / np.array(taken_s)
        solution = np.linalg.lstsq(np.array(rows) * weights[:, None], np.array(taken_s) * weights, rcond=None)[0]
        fitted[cores] = [max(0.0, float(value)) for value in solution]
    columns = [{cores: values[column] for cores, values in fitted.items()} for column in range(6)]
    prefill_slowdown, decode_slowdown = solo.slowdowns(8, 128, 256) if total > 1 else (1.0, 1.0)
    return MeasuredSteps(
        device=solo.device,
        latency=StepLatency(solo.spec.num_layers, *columns),
        prefill_slowdown=prefill_slowdown,
        decode_slowdown=decode_slowdown,
        points_ms=points_ms,
    )
