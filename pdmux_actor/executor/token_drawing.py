"""Draws tokens from scaled logits: from all of them, or from what top-k and top-p leave."""

import numpy as np
import torch
from torch import Tensor

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
