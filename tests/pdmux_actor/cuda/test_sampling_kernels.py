"""Draws without a sort against those of sorted rows, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.executor.cuda.sampling_kernels import draw_rows
from pdmux_actor.executor.sampler import draw_filtered, draw_unfiltered

VOCABULARY = 67
TRIED = 4  # of the tokens that are left, each drawn once: the interpreter takes some 20 milliseconds for a row
FILTERS = [(5, 1.0, 0.0), (0, 0.7, 0.0), (30, 0.8, 0.0), (9, 0.999, 0.0), (0, 0.9, 0.3), (1, 0.5, 0.0), (0, 0.0, 0.0)]


def random_logits() -> Tensor:
    return 4 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3))


def one_hot() -> Tensor:
    return torch.full((VOCABULARY,), -1e30).index_fill_(0, torch.tensor(41), 7.0)


def mostly_masked() -> Tensor:
    logits = random_logits()
    logits[torch.arange(VOCABULARY) % 9 > 0] = float("-inf")
    return logits


LOGITS = {
    "random": random_logits(),
    "many alike": random_logits().div(3).round(),
    "all alike": torch.full((VOCABULARY,), -2.5),
    "one hot": one_hot(),
    "mostly masked": mostly_masked(),
    "far below zero": random_logits() - 1e4,
    "two alike at the top": torch.cat((torch.tensor([9.0, 9.0]), random_logits()[2:].clamp(max=8.0))),
}


def kept_in_order(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """Ids that the filters leave, falling, and their probabilities; from a whole sort, in float64."""
    ordered, token_ids = logits.double().sub(logits.max()).div(temperature).sort(descending=True, stable=True)
    if top_k:
        ordered, token_ids = ordered[:top_k], token_ids[:top_k]
    probabilities = ordered.softmax(0)
    mass_before = probabilities.cumsum(0) - probabilities
    # What a row's rounding decides is no filter's word: equal shares whose sum is top_p but for the last bit.
    kept = mass_before < top_p - 1e-9
    kept[0] = True
    if min_p > 0:
        kept &= ordered.exp() >= min_p
    return token_ids[kept], ordered[kept].softmax(0)


def drawn(logits: Tensor, settings: tuple[float, int, float, float], uniforms: Tensor) -> list[int]:
    """Of the same row, once for each of `uniforms`."""
    rows = logits.repeat(len(uniforms), 1)
    highest, likeliest = rows.max(dim=-1)
    temperature, top_k, top_p, min_p = (torch.full((len(uniforms),), value, dtype=torch.float64) for value in settings)
    least = min_p.log() if settings[3] > 0 else None
    filters = temperature, top_k.int(), top_p
    ids: list[int] = draw_rows(rows, highest, likeliest, *filters, uniforms, least).tolist()
    return ids


@pytest.mark.parametrize("name", LOGITS)
def test_draw_rows__row_of_filters__draws_each_token_that_a_sort_leaves_and_no_other(name: str) -> None:
    logits = LOGITS[name]
    for temperature, (top_k, top_p, min_p) in zip((1.0, 0.7, 1.6, 1.0, 0.9, 1.0, 1.0), FILTERS, strict=True):
        kept, probabilities = kept_in_order(logits, temperature, top_k, top_p, min_p)
        can_be = probabilities > 1e-7
        kept, probabilities = kept[can_be], probabilities[can_be]
        tried = torch.linspace(0, len(kept) - 1, TRIED).long()
        middles = (probabilities.cumsum(0) - probabilities / 2)[tried]
        uniforms = torch.cat((middles, torch.tensor([0.0, 1 - 1e-9], dtype=torch.float64)))
        expected = [*kept[tried].tolist(), kept[0].item(), kept[-1].item()]

        found = drawn(logits, (temperature, top_k, top_p, min_p), uniforms)

        assert found == expected, (temperature, top_k, top_p, min_p)


@pytest.mark.parametrize("candidates", [4, 8192])
def test_draw_rows__more_tokens_left_than_there_is_room_for__the_same_draws(candidates: int) -> None:
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(1))  # three tiles
    uniforms = torch.tensor([0.0, 0.2, 0.51, 0.77, 0.9999999], dtype=torch.float64)
    settings = torch.full((5,), 1.3, dtype=torch.float64), torch.tensor([0, 700, 0, 3000, 2]), torch.full((5,), 0.97)
    settings[2][4] = 1.0
    rows = logits.repeat(5, 1)
    expected = draw_filtered(rows - rows.max(), *settings[:2], settings[2].double(), uniforms).tolist()
    highest, likeliest = rows.max(dim=-1)

    found = draw_rows(
        rows,
        highest,
        likeliest,
        settings[0],
        settings[1].int(),
        settings[2].double(),
        uniforms,
        candidates=candidates,
    )

    assert found.tolist() == expected


def test_draw_rows__no_filter__draws_by_id_as_the_cpu_with_min_p_and_without() -> None:
    logits = 2 * torch.randn(9, 2100, generator=torch.Generator().manual_seed(2))
    logits[4, 40:] = float("-inf")
    highest, likeliest = logits.max(dim=-1)
    temperatures = torch.linspace(0.4, 1.9, 9, dtype=torch.float64)
    uniforms = torch.linspace(0, 1 - 1e-9, 9, dtype=torch.float64)
    nothing = torch.zeros(9, dtype=torch.int32), torch.ones(9, dtype=torch.float64)
    for least in (None, torch.linspace(-6, -0.5, 9, dtype=torch.float64)):
        expected = draw_unfiltered(logits - highest[:, None], temperatures, uniforms, least)

        found = draw_rows(logits, highest, likeliest, temperatures, *nothing, uniforms, least)

        assert found.tolist() == expected.tolist()


def test_draw_rows__as_many_tokens_as_the_largest_vocabulary_has__are_drawn_from() -> None:
    logits, per_row = torch.zeros(1, 262_208), torch.ones(1, dtype=torch.float64)  # Gemma 3's, all as likely

    found = draw_rows(
        logits, logits.amax(dim=1), per_row.long(), per_row, per_row.int() * 0, per_row, per_row * 0.999999
    )

    assert found.tolist() == [int(262_208 * 0.999999)]


def test_draw_rows__min_p_at_a_token_s_own_probability__keeps_it_and_nothing_below() -> None:
    logits = torch.tensor([0.0, -1.0, -1.0000001, -3.0])
    rows, per_row = logits.repeat(2, 1), torch.ones(2, dtype=torch.float64)
    uniforms = torch.tensor([0.2, 0.999999], dtype=torch.float64)

    found = draw_rows(
        rows, per_row.float() * 0, per_row.long(), per_row, per_row.int() * 4, per_row, uniforms, -per_row
    )

    assert found.tolist() == [0, 1]


def test_draw_rows__rows_that_are_not_drawn__have_their_likeliest_token() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [float("nan")] * 3, [float("-inf")] * 3])
    likeliest, per_row = torch.tensor([1, 0, 0]), torch.ones(3, dtype=torch.float64)
    temperatures = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)

    found = draw_rows(
        logits, logits.max(dim=-1).values, likeliest, temperatures, per_row.int() * 0, per_row * 0.5, per_row * 0.9
    )

    assert found.tolist() == [1, 0, 0]
