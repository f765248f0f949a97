"""DuetServe's attention-aware roofline: latency from shapes and the rates of a device (§4.1 of the paper)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from profiler.latency import ChunkShape
from profiler.nano_batches import overlapped_step_s
from profiler.operator_costs import OperatorCosts, operator_costs
from profiler.specs import DeviceSpec, ModelSpec

# Then all are forgotten: at the most some 4 MB a model, if it runs on each of 132 shares. Decode batches come again
# and again and are few; prompts' token counts hardly do.
_REMEMBERED_PASSES = 256  # of a model on one share, by tokens and sampled rows
_REMEMBERED_LINES = 4096  # of all models, by batch size


class _DecodeLine(NamedTuple):
    """Steps of one batch size on one share: only attention depends on the contexts."""

    rest_s: float
    num_layers: int
    s_per_pair: float
    query_s: float
    s_per_key: float
    start_s: float

    def seconds(self, keys: float) -> float:
        """`AttentionCost.seconds` and the rest, written out: it is asked a dozen times per decision."""
        rest_s, num_layers, s_per_pair, query_s, s_per_key, start_s = self
        compute_s, traffic_s = s_per_pair * keys, query_s + s_per_key * keys
        work_s: float = (compute_s * compute_s + traffic_s * traffic_s) ** 0.5
        return rest_s + num_layers * (work_s + start_s)


class _Passes:
    """Forward passes of one model on one share. All but attention depends on two counts, which come again and again."""

    def __init__(self, spec: ModelSpec, costs: OperatorCosts) -> None:
        self.spec = spec
        self.costs = costs
        self._without_attention_s: dict[tuple[int, int], float] = {}

    def decode_line(self, n: int) -> _DecodeLine:
        attention = self.costs.attention
        return _DecodeLine(
            rest_s=self.rest_s(n, n),
            num_layers=self.costs.num_layers,
            s_per_pair=attention.s_per_pair,
            query_s=attention.s_per_query * float(n),
            s_per_key=attention.s_per_key,
            start_s=attention.start_s,
        )

    def rest_s(self, n: int, sampled_rows: int) -> float:
        counts = (n, sampled_rows)
        rest_s = self._without_attention_s.get(counts)
        if rest_s is None:
            if len(self._without_attention_s) >= _REMEMBERED_PASSES:
                self._without_attention_s.clear()
            rest_s = self._without_attention_s[counts] = self.costs.total_s(float(n), 0.0, float(sampled_rows))
        return rest_s


class RooflineLatency:
    """`profiler.latency.LatencyModel` without any profiling run. A batch without tokens takes no time.

    How far off it is, by device and operator: docs/latency-models.md. It knows nothing of engines whose host cannot
    launch fast enough, except for the launch overhead per kernel.
    """

    def __init__(self, device: DeviceSpec, *, num_gpus: int = 1) -> None:
        """`num_gpus` of `device` are one tensor-parallel mesh; `sms` of the methods are those of each GPU."""
        self._device = device
        self._num_gpus = num_gpus
        self._passes: dict[tuple[int, int], _Passes] = {}
        self._decode_lines: dict[tuple[int, int], dict[int, _DecodeLine]] = {}  # by model and batch size, then by SMs

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        n = len(context_tokens)
        if n == 0:
            return 0.0
        line = self._lines_of(spec, n).get(sms) or self._decode_line(spec, n, sms)
        return line.seconds(float(sum(context_tokens) + n))

    def decode_by_share(self, spec: ModelSpec, context_tokens: Sequence[int]) -> Callable[[int], float]:
        n = len(context_tokens)
        keys, lines = float(sum(context_tokens) + n), self._lines_of(spec, n)

        def seconds(sms: int) -> float:
            return (lines.get(sms) or self._decode_line(spec, n, sms)).seconds(keys)

        return seconds if n else _no_time

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        if not chunks:
            return self.decode_s(spec, context_tokens, sms)
        num_decodes = len(context_tokens)
        n = num_decodes + _new_tokens(chunks)
        if n == 0:
            return 0.0
        passes = self._passes_of(spec, sms)
        attention = passes.costs.attention
        keys = float(sum(context_tokens) + num_decodes)
        pairs, longest = keys * attention.fused_decode_tokens, float(max(context_tokens, default=0))
        for chunk in chunks:
            pairs += attention.prompt_pairs(float(chunk.new_tokens), float(chunk.context_tokens))
            known = chunk.new_tokens + chunk.context_tokens
            keys += known
            if known > longest:
                longest = float(known)
        attention_s = attention.with_prompts_s(pairs, float(n), keys, longest_keys=longest, decodes=float(num_decodes))
        return passes.rest_s(n, len(chunks) + num_decodes) + passes.costs.num_layers * attention_s

    def overlapped_s(
        self,
        spec: ModelSpec,
        chunks: Sequence[ChunkShape],
        context_tokens: Sequence[int],
        sms: int,
        *,
        nano_batches: int,
    ) -> float:
        costs = self.costs(spec, sms)
        return overlapped_step_s(costs, self._device, chunks, context_tokens, sms=sms, nano_batches=nano_batches)

    def costs(self, spec: ModelSpec, sms: int) -> OperatorCosts:
        """Operator by operator."""
        return self._passes_of(spec, sms).costs

    def _passes_of(self, spec: ModelSpec, sms: int) -> "_Passes":
        # By identity: hashing a spec takes longer than what it is looked up for. The entry keeps the spec alive.
        key = (id(spec), sms)
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = _Passes(spec, operator_costs(spec, self._device, self._num_gpus, sms))
        return passes

    def _lines_of(self, spec: ModelSpec, n: int) -> dict[int, _DecodeLine]:
        lines = self._decode_lines.get((id(spec), n))
        if lines is None:
            if len(self._decode_lines) >= _REMEMBERED_LINES:
                self._decode_lines.clear()
            lines = self._decode_lines[id(spec), n] = {}
        return lines

    def _decode_line(self, spec: ModelSpec, n: int, sms: int) -> _DecodeLine:
        line = self._lines_of(spec, n)[sms] = self._passes_of(spec, sms).decode_line(n)
        return line


def _no_time(_: int) -> float:
    return 0.0


def _new_tokens(chunks: Iterable[ChunkShape]) -> int:
    return sum(chunk.new_tokens for chunk in chunks)
