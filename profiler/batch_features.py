"""The sums over a batch that its latency depends on (MuxWise, Table 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from profiler.latency import ChunkShape, Floats

Amount = TypeVar("Amount", float, Floats)

Feature = Literal[
    "one",
    "tokens",
    "rows",
    "prompts",
    "prefill_tokens",
    "prefill_squares",
    "prefill_products",
    "prefill_context",
    "decode_sequences",
    "decode_tokens",
    "decode_depth",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFeatures(Generic[Amount]):
    """Sums up one batch, or arrays of many. In MuxWise's symbols, n new and r reused tokens of a prompt:
    `prefill_tokens` is sum n, `prefill_squares` sum n^2, `prefill_products` sum n r; of decoding sequences
    `decode_tokens` is sum r.
    """

    prompts: Amount
    prefill_tokens: Amount
    prefill_squares: Amount
    prefill_products: Amount
    decode_sequences: Amount
    decode_tokens: Amount

    @property
    def one(self) -> Amount:
        return 0.0 * self.prompts + 1.0

    @property
    def tokens(self) -> Amount:
        """Returns the tokens that go through a layer."""
        return self.prefill_tokens + self.decode_sequences

    @property
    def rows(self) -> Amount:
        """Returns the rows that a token is sampled from."""
        return self.prompts + self.decode_sequences

    @property
    def prefill_context(self) -> Amount:
        """Reused tokens of a prompt, its mean over new tokens."""
        return _ratio(self.prefill_products, self.prefill_tokens)

    @property
    def decode_depth(self) -> Amount:
        """Mean context of a decoding sequence."""
        return _ratio(self.decode_tokens, self.decode_sequences)

    def value(self, name: Feature) -> Amount:
        amount: Amount = getattr(self, name)
        return amount


def batch_features(chunks: Sequence[ChunkShape], context_tokens: Sequence[int]) -> BatchFeatures[float]:
    tokens = squares = products = 0.0
    for chunk in chunks:
        tokens += chunk.new_tokens
        squares += chunk.new_tokens * chunk.new_tokens
        products += chunk.new_tokens * chunk.context_tokens
    return BatchFeatures(
        prompts=float(len(chunks)),
        prefill_tokens=tokens,
        prefill_squares=squares,
        prefill_products=products,
        decode_sequences=float(len(context_tokens)),
        decode_tokens=float(sum(context_tokens)),
    )


def stacked(batches: Sequence[BatchFeatures[float]]) -> BatchFeatures[Floats]:
    def column(name: Feature) -> Floats:
        return np.array([batch.value(name) for batch in batches], dtype=np.float64)

    return BatchFeatures(
        prompts=column("prompts"),
        prefill_tokens=column("prefill_tokens"),
        prefill_squares=column("prefill_squares"),
        prefill_products=column("prefill_products"),
        decode_sequences=column("decode_sequences"),
        decode_tokens=column("decode_tokens"),
    )


def _ratio(part: Amount, whole: Amount) -> Amount:
    """0 where there is no whole."""
    if isinstance(part, float) or isinstance(whole, float):
        return part / whole if whole else 0.0
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
