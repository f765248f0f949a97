"""Turns logits into tokens, for a whole batch at once.

The draw for output token i of a request uses one uniform number that depends on (seed, i) only, and which of the two
sampling paths a row takes depends on its own parameters only: neighbours, preemption and restarts change no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.constrained_rows import ConstrainedRows
from pdmux_actor.executor.logits_processing import LogitsProcessor
from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.sequence import TokenSequence

_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBatch:
    """`logprobs[j]` and `top_*[j]` belong to the j-th row that asked for log-probabilities."""

    token_ids: Tensor  # [rows]
    logprobs: Tensor | None = None  # [rows that asked]
    top_ids: Tensor | None = None  # [rows that asked, most alternatives]
    top_logprobs: Tensor | None = None
    broken_rows: frozenset[int] = frozenset()  # their logits were not finite; their tokens mean nothing


class Sampler:
    """Sampling parameters of the rows of one launch, as tensors."""

    def __init__(self, sequences: Sequence[TokenSequence], eos_token_ids: frozenset[int]) -> None:
        params = [s.request.sampling for s in sequences]
        self._eos = torch.tensor(sorted(eos_token_ids), dtype=torch.int64)
        self._output_indices = np.array([s.num_output_tokens for s in sequences], dtype=np.int64)
        self._min_tokens = np.array([p.min_tokens for p in params], dtype=np.int64)
        self._seeds = np.array([p.seed & _UINT64 for p in params], dtype=np.uint64)
        self._temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float64)
        self._top_ps = torch.tensor([p.top_p for p in params], dtype=torch.float64)
        self._top_ks = torch.tensor([p.top_k for p in params], dtype=torch.int64)
        self._processor = LogitsProcessor.of(sequences)
        self._constrained = ConstrainedRows.of(sequences)
        self._earlier: list[Tensor] = []  # what the launch's steps sampled, where it matters
        self._num_alternatives = [p.logprobs for p in params]
        self._logprob_rows = torch.tensor([i for i, p in enumerate(params) if p.logprobs is not None])
        drawn = self._temperatures > 0
        filtered = drawn & ((self._top_ps < 1) | (self._top_ks > 0))
        self._temperatures.clamp_(min=1e-12)
        self._plain_rows = (drawn & ~filtered).nonzero().squeeze(1)
        self._filtered_rows = filtered.nonzero().squeeze(1)

    def sample(self, logits: Tensor, step: int = 0) -> SampledBatch:
        """logits: float32 [rows, vocab_size], overwritten; `step` counts look-ahead steps of the launch."""
        report = self._log_softmax(logits)
        if self._processor is not None:
            self._processor.apply(logits, self._earlier)
        too_short = self._output_indices + step < self._min_tokens
        if len(self._eos) and too_short.any():
            rows = torch.from_numpy(np.flatnonzero(too_short))
            logits[rows[:, None], self._eos] = float("-inf")
        if self._constrained is not None:
            self._constrained.mask(logits)
        highest, token_ids = logits.max(dim=-1)
        finite, broken_rows = highest.isfinite(), frozenset[int]()
        if not bool(finite.all()):
            broken_rows = frozenset((~finite).nonzero().squeeze(1).tolist())
            logits[~finite] = 0.0
            highest, token_ids = logits.max(dim=-1)
        if len(self._plain_rows) + len(self._filtered_rows):
            uniforms = torch.from_numpy(uniform(self._seeds, self._output_indices + step))
            below_highest = logits.sub_(highest[:, None])
            log_min_ps = None if self._processor is None else self._processor.log_min_p
            if len(rows := self._plain_rows):
                least = None if log_min_ps is None else log_min_ps[rows]
                token_ids[rows] = draw_unfiltered(below_highest[rows], self._temperatures[rows], uniforms[rows], least)
            if len(rows := self._filtered_rows):
                least = None if log_min_ps is None else log_min_ps[rows]
                filters = self._temperatures[rows], self._top_ks[rows], self._top_ps[rows]
                token_ids[rows] = draw_filtered(below_highest[rows], *filters, uniforms[rows], least)
        if self._processor is not None:
            self._earlier.append(token_ids)
        return self._with_logprobs(token_ids, report, broken_rows)

    def tokens(self, sampled: SampledBatch) -> list[SampledToken]:
        """Plain values of one step, in the order of the rows."""
        ids: list[int] = sampled.token_ids.tolist()
        if sampled.logprobs is None or sampled.top_ids is None or sampled.top_logprobs is None:
            return [SampledToken(token_id) for token_id in ids]
        reports = zip(sampled.logprobs.tolist(), sampled.top_ids.tolist(), sampled.top_logprobs.tolist(), strict=True)
        result = []
        for token_id, wanted in zip(ids, self._num_alternatives, strict=True):
            if wanted is None:
                result.append(SampledToken(token_id))
                continue
            logprob, top_ids, top_logprobs = next(reports)
            top = tuple(zip(top_ids[:wanted], top_logprobs[:wanted], strict=True))
            result.append(SampledToken(token_id, logprob, top))
        return result

    def _log_softmax(self, logits: Tensor) -> Tensor | None:
        """Of the model's own distribution: before penalties, masks, temperature and filters."""
        if not len(self._logprob_rows):
            return None
        return logits[self._logprob_rows].log_softmax(dim=-1)

    def _with_logprobs(self, token_ids: Tensor, report: Tensor | None, broken_rows: frozenset[int]) -> SampledBatch:
        if report is None:
            return SampledBatch(token_ids=token_ids, broken_rows=broken_rows)
        chosen = token_ids[self._logprob_rows]
        most = min(max(n for n in self._num_alternatives if n is not None), report.shape[1])
        top_logprobs, top_ids = report.topk(most, dim=-1)
        return SampledBatch(
            token_ids=token_ids,
            logprobs=report.gather(1, chosen[:, None]).squeeze(1),
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            broken_rows=broken_rows,
        )


def uniform(seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) from (seed, index) by SplitMix64's finaliser (Steele et al., OOPSLA 2014), twice.

    A generator object per token (Philox: 20 us each) would cost more than the model's step on a small model.
    """
    mixed = _mix(_mix(seeds) ^ indices.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_ROWS_PER_TILE = 8  # whose float64 stay in the cores' caches
_SMALL_VOCABULARY = 4096  # up to here all rows are sorted whole, in one go
# By which the tokens of a row are put in coarse order. Beyond e^-64 of the highest probability all are one.
_BINS, _BINS_PER_LOGIT = 4096, 64
_MARGIN = 1e-9  # of the mass that top-p asks for: more than sums of the same numbers in other orders differ by


def draw(scaled: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the distribution function. float64 throughout: 150,000 tokens add up."""
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    targets = torch.minimum(uniforms * total, below_total)
    return torch.searchsorted(cumulative, targets[:, None], right=True).squeeze(1)


def draw_unfiltered(
    below_highest: Tensor, temperatures: Tensor, uniforms: Tensor, log_min_ps: Tensor | None = None
) -> Tensor:
    """Token ids [rows] from all tokens; arguments as `draw_filtered` has them."""
    token_ids = []
    for tile in _tiles(below_highest):
        scaled = below_highest[tile].double().div_(temperatures[tile, None])
        if log_min_ps is not None:
            scaled.masked_fill_(scaled < log_min_ps[tile, None], float("-inf"))
        token_ids.append(draw(scaled, uniforms[tile]))
    return torch.cat(token_ids)


def draw_filtered(
    below_highest: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    uniforms: Tensor,
    log_min_ps: Tensor | None = None,
) -> Tensor:
    """top-k first, then top-p over what top-k left, then min-p, as transformers does; `draw` from that in falling
    order, tokens of equal logits by their ids. Returns token ids [rows].

    below_highest: float32 [rows, vocab_size], logits less their row's highest; the others float64 or int64 [rows],
    `top_ks` 0 is no limit. Of a large vocabulary only those tokens are sorted that can be left.
    """
    if log_min_ps is None:
        log_min_ps = torch.full_like(temperatures, float("-inf"))
    if below_highest.shape[1] > _SMALL_VOCABULARY:
        of_rows = (below_highest, temperatures, top_ks, top_ps, uniforms, log_min_ps)
        return torch.cat([_draw_tile(*(argument[t] for argument in of_rows)) for t in _tiles(below_highest)])
    ordered, token_ids = below_highest.sort(dim=-1, descending=True, stable=True)
    scaled = _mask_filtered(ordered.double().div_(temperatures[:, None]), top_ks[:, None], top_ps[:, None])
    places = draw(scaled.masked_fill_(scaled < log_min_ps[:, None], float("-inf")), uniforms)
    return token_ids.gather(1, places[:, None]).squeeze(1)


def _tiles(rows: Tensor) -> list[slice]:
    return [slice(first, first + _ROWS_PER_TILE) for first in range(0, len(rows), _ROWS_PER_TILE)]


def _draw_tile(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, uniforms: Tensor, log_min_ps: Tensor
) -> Tensor:
    """As `draw_filtered`, of a large vocabulary."""
    bins = (logits * (-_BINS_PER_LOGIT / temperatures[:, None])).clamp_(max=_BINS - 1).long().numpy()
    by_mass = (top_ks <= 0) | (top_ks >= logits.shape[1])
    weights = masses = None
    if bool(by_mass.any()):
        weights = logits.double().div_(temperatures[:, None]).exp_()  # the highest is 1
        masses = weights.sum(dim=-1)
    settings = zip(temperatures.tolist(), top_ks.tolist(), top_ps.tolist(), strict=True)
    token_ids = []
    for row, (temperature, top_k, top_p) in enumerate(settings):
        mass = None
        if weights is not None and masses is not None and by_mass[row]:
            mass = masses[row]
            in_bins, needed = np.bincount(bins[row], weights[row].numpy(), _BINS), top_p * float(mass) * (1 + _MARGIN)
        else:
            in_bins, needed = np.bincount(bins[row], minlength=_BINS), top_k
        last_bin = np.searchsorted(in_bins.cumsum(), needed)
        ids = torch.from_numpy(np.flatnonzero(bins[row] <= last_bin))
        ordered, places = logits[row, ids].sort(descending=True, stable=True)
        scaled = _mask_filtered(ordered.double().div_(temperature)[None], top_ks[row], top_ps[row], mass)
        scaled.masked_fill_(scaled < log_min_ps[row], float("-inf"))
        token_ids.append(ids[places[draw(scaled, uniforms[row : row + 1])]])
    return torch.cat(token_ids)


def _mask_filtered(scaled: Tensor, top_ks: Tensor, top_ps: Tensor, mass: Tensor | None = None) -> Tensor:
    """`scaled` [rows, tokens], falling from 0, what the filters leave out at minus infinity. `mass` None: its own."""
    ranks = torch.arange(scaled.shape[1])
    scaled.masked_fill_((ranks >= top_ks) & (top_ks > 0), float("-inf"))
    weights = scaled.exp()
    probabilities = weights.div_(weights.sum(dim=-1, keepdim=True) if mass is None else mass)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    return scaled.masked_fill_((mass_before >= top_ps) & (ranks > 0), float("-inf"))
