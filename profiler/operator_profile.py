"""Turns measured operators of one model on one mesh into the latency of whole batches."""

from dataclasses import dataclass

import numpy as np

from profiler.batch_features import BatchFeatures, Feature
from profiler.grid_table import GridTable
from profiler.latency import Floats
from profiler.measured import PhaseTimes, StepTimes, SumOfTimes
from profiler.operator_costs import operator_costs
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec
from profiler.table import TableLatency
from profiler.trend import DECODE_FEATURES, MIXED_FEATURES, PREFILL_FEATURES, Trend

_MIXED_AXES: tuple[Feature, ...] = ("prefill_tokens", "prefill_context", "decode_sequences", "decode_depth")
_MIXED_KNOTS = 12  # per axis, of four


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperator:
    """Times of one launch of an operator, or of several that always go together."""

    batches: BatchFeatures[Floats]
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProfile:
    """Holds the operators of one GPU of the mesh, on all its SMs. `per_layer` and `per_pass` by tokens, `per_row`
    (classifier, sampler) by sampled rows; None: the roofline's classifier. Attention either once for any batch, or by
    phase. `all_reduce` by tokens, one of the two of a layer; None: the roofline's.
    """

    per_layer: MeasuredOperator
    per_pass: MeasuredOperator
    per_row: MeasuredOperator | None
    prefill_attention: MeasuredOperator | None = None
    decode_attention: MeasuredOperator | None = None
    mixed_attention: MeasuredOperator | None = None
    all_reduce: MeasuredOperator | None = None

    def latency(self, spec: ModelSpec, device: DeviceSpec, *, num_gpus: int = 1) -> TableLatency:
        """Partitions of fewer SMs are scaled by the roofline of `device`."""
        layers = float(spec.num_layers)
        shared: list[tuple[float, StepTimes]] = [
            (layers, _by_count("tokens", self.per_layer)),
            (1.0, _by_count("tokens", self.per_pass)),
            (1.0, self._rows(spec, device, num_gpus)),
        ]
        if num_gpus > 1:
            shared.append((2 * layers, self._all_reduce(spec, device, num_gpus)))
        if self.mixed_attention is not None:
            any_batch = GridTable.fit(
                MIXED_FEATURES,
                _MIXED_AXES,
                self.mixed_attention.batches,
                self.mixed_attention.seconds,
                max_knots=_MIXED_KNOTS,
            )
            times = SumOfTimes((*shared, (layers, any_batch)))
            phases = PhaseTimes(prefill=times, decode=times, mixed=times)
        else:
            assert self.prefill_attention is not None, "a profile without attention"
            assert self.decode_attention is not None, "a profile without attention"
            prefill = _attention(PREFILL_FEATURES, ("prefill_tokens", "prefill_context"), self.prefill_attention)
            decode = _attention(DECODE_FEATURES, ("decode_sequences", "decode_depth"), self.decode_attention)
            phases = PhaseTimes(
                prefill=SumOfTimes((*shared, (layers, prefill))),
                decode=SumOfTimes((*shared, (layers, decode))),
                mixed=SumOfTimes((*shared, (layers, prefill), (layers, decode))),
            )
        return TableLatency({spec: {device.num_sms: phases}}, beyond=RooflineLatency(device, num_gpus=num_gpus))

    def _all_reduce(self, spec: ModelSpec, device: DeviceSpec, num_gpus: int) -> StepTimes:
        if self.all_reduce is not None:
            return _by_count("tokens", self.all_reduce)
        costs = operator_costs(spec, device, num_gpus, device.num_sms)
        return Trend(("one", "tokens"), (costs.all_reduce_start_s, costs.all_reduce_s_per_token))

    def _rows(self, spec: ModelSpec, device: DeviceSpec, num_gpus: int) -> StepTimes:
        if self.per_row is not None:
            return _by_count("rows", self.per_row)
        classifier = operator_costs(spec, device, num_gpus, device.num_sms).classifier
        start_s = device.launch_overhead_s + classifier.weight_s
        return Trend(("one", "rows"), (start_s, classifier.compute_s_per_token + classifier.traffic_s_per_token))


def batches_of(
    *,
    prefill_tokens: Floats | None = None,
    prefill_context: Floats | None = None,
    prompts: Floats | None = None,
    decode_sequences: Floats | None = None,
    decode_depth: Floats | None = None,
) -> BatchFeatures[Floats]:
    """Columns of a profile, of which some are absent. `prefill_tokens` are all new tokens, of `prompts` alike."""
    given = [c for c in (prefill_tokens, decode_sequences) if c is not None]
    none = np.zeros(len(given[0]))
    tokens = none if prefill_tokens is None else np.asarray(prefill_tokens, dtype=np.float64)
    context = none if prefill_context is None else np.asarray(prefill_context, dtype=np.float64)
    count = (tokens > 0).astype(np.float64) if prompts is None else np.asarray(prompts, dtype=np.float64)
    sequences = none if decode_sequences is None else np.asarray(decode_sequences, dtype=np.float64)
    depth = none if decode_depth is None else np.asarray(decode_depth, dtype=np.float64)
    return BatchFeatures(
        prompts=count,
        prefill_tokens=tokens,
        prefill_squares=tokens * tokens / np.maximum(count, 1.0),
        prefill_products=tokens * context,
        decode_sequences=sequences,
        decode_tokens=sequences * depth,
    )


def _by_count(feature: Feature, operator: MeasuredOperator) -> GridTable:
    return GridTable.fit(("one", feature), (feature,), operator.batches, operator.seconds, max_knots=512)


def _attention(features: tuple[Feature, ...], axes: tuple[Feature, ...], operator: MeasuredOperator) -> GridTable:
    return GridTable.fit(features, axes, operator.batches, operator.seconds)
