"""DuetServe's attention-aware roofline: latency from shapes and the rates of a device (§4.1 of the paper)."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from profiler.latency import ChunkShape, Floats
from profiler.operator_costs import OperatorCosts, operator_costs
from profiler.specs import DeviceSpec, ModelSpec


class RooflineLatency:
    """`profiler.latency.VectorLatencyModel` without any profiling run. A batch without tokens takes no time.

    How far off it is, by device and operator: docs/latency-models.md. It knows nothing of engines whose host cannot
    launch fast enough, except for the launch overhead per kernel.
    """

    def __init__(self, device: DeviceSpec, *, num_gpus: int = 1) -> None:
        """`num_gpus` of `device` are one tensor-parallel mesh; `sms` of the methods are those of each GPU."""
        self._device = device
        self._num_gpus = num_gpus
        self._costs: dict[tuple[ModelSpec, int], OperatorCosts] = {}

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return self.mixed_s(spec, chunks, (), sms)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        n = len(context_tokens)
        if n == 0:
            return 0.0
        costs = self.costs(spec, sms)
        keys = float(sum(context_tokens) + n)
        return costs.total_s(float(n), costs.attention.seconds(keys, float(n), keys), float(n))

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        num_decodes = len(context_tokens)
        n = num_decodes + _new_tokens(chunks)
        if n == 0:
            return 0.0
        costs = self.costs(spec, sms)
        pairs = keys = float(sum(context_tokens) + num_decodes)
        for chunk in chunks:
            q, c = chunk.new_tokens, chunk.context_tokens
            pairs += q * c + q * (q + 1) / 2
            keys += q + c
        attention_s = costs.attention.seconds(pairs, float(n), keys)
        return costs.total_s(float(n), attention_s, float(len(chunks) + num_decodes))

    def prefills_s(
        self,
        spec: ModelSpec,
        num_prompts: npt.ArrayLike,
        new_tokens: npt.ArrayLike,
        context_tokens: npt.ArrayLike,
        sms: npt.ArrayLike,
    ) -> Floats:
        def seconds(costs: OperatorCosts, k: Floats, q: Floats, c: Floats) -> Floats:
            attention_s = costs.attention.seconds(k * (q * c + q * (q + 1) / 2), k * q, k * (q + c))
            return np.where(k * q > 0, costs.total_s(k * q, attention_s, k), 0.0)

        return self._by_partition(spec, seconds, sms, num_prompts, new_tokens, context_tokens)

    def decodes_s(
        self, spec: ModelSpec, num_sequences: npt.ArrayLike, context_tokens: npt.ArrayLike, sms: npt.ArrayLike
    ) -> Floats:
        def seconds(costs: OperatorCosts, n: Floats, c: Floats) -> Floats:
            keys = n * (c + 1)
            return np.where(n > 0, costs.total_s(n, costs.attention.seconds(keys, n, keys), n), 0.0)

        return self._by_partition(spec, seconds, sms, num_sequences, context_tokens)

    def costs(self, spec: ModelSpec, sms: int) -> OperatorCosts:
        """Operator by operator."""
        key = (spec, sms)
        costs = self._costs.get(key)
        if costs is None:
            costs = self._costs[key] = operator_costs(spec, self._device, self._num_gpus, sms)
        return costs

    def _by_partition(
        self, spec: ModelSpec, seconds: Callable[..., Floats], sms: npt.ArrayLike, *amounts: npt.ArrayLike
    ) -> Floats:
        shares, *columns = np.broadcast_arrays(np.asarray(sms), *(np.asarray(a, dtype=np.float64) for a in amounts))
        answer = np.zeros(shares.shape)
        for share in np.unique(shares):
            chosen = shares == share
            answer[chosen] = seconds(self.costs(spec, int(share)), *(column[chosen] for column in columns))
        return answer


def _new_tokens(chunks: Iterable[ChunkShape]) -> int:
    return sum(chunk.new_tokens for chunk in chunks)
