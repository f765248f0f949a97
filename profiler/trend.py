"""Latency as a non-negative weighted sum of a batch's features: MuxWise's Eq. 1 and 2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from profiler.batch_features import Amount, BatchFeatures, Feature
from profiler.latency import Floats

# T_Prefill = theta_1 sum n^2 + theta_2 sum n r + theta_3 sum n + theta_4 (Eq. 1)
PREFILL_FEATURES: tuple[Feature, ...] = ("prefill_squares", "prefill_products", "prefill_tokens", "one")
# T_Decode = theta_1 sum r + theta_2 bs + theta_3 (Eq. 2)
DECODE_FEATURES: tuple[Feature, ...] = ("decode_tokens", "decode_sequences", "one")
# The paper has no equation for a fused step: one that reads both kinds of KV and passes the layers once.
MIXED_FEATURES: tuple[Feature, ...] = (*PREFILL_FEATURES[:-1], *DECODE_FEATURES)
PHASE_FEATURES: Mapping[str, tuple[Feature, ...]] = MappingProxyType(
    {"prefill": PREFILL_FEATURES, "decode": DECODE_FEATURES, "mixed": MIXED_FEATURES}
)


@dataclass(frozen=True, slots=True)
class Trend:
    """`coefficients` are seconds per unit of the feature."""

    features: tuple[Feature, ...]
    coefficients: tuple[float, ...]

    @classmethod
    def fit(cls, features: Sequence[Feature], batches: BatchFeatures[Floats], seconds: Floats) -> "Trend":
        """Non-negative least squares of relative errors, so that short launches count as much as long ones."""
        from scipy.optimize import nnls  # half a second that who fits nothing is spared

        columns = np.stack([batches.value(name) for name in features], axis=1)
        scales = np.maximum(columns.max(axis=0), 1e-30)  # the solver wants columns of one magnitude
        solution, _ = nnls(columns / scales / seconds[:, None], np.ones(len(seconds)))
        return cls(tuple(features), tuple(float(c) for c in solution / scales))

    def seconds(self, batch: BatchFeatures[Amount]) -> Amount:
        total: Amount = self.coefficients[0] * batch.value(self.features[0])
        for name, coefficient in zip(self.features[1:], self.coefficients[1:], strict=True):
            total = total + coefficient * batch.value(name)
        return total

    def is_outside(self, batch: BatchFeatures[float]) -> bool:
        """An equation has no edges."""
        return False
