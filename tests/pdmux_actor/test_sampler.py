import math

import numpy as np
import pytest
import torch

from pdmux_actor.executor.sampler import Sampler, uniform
from pdmux_actor.messages import GenerateRequest, SampledToken, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

VOCAB = 8
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -6.0])
EOS = frozenset({0, 1})


def make_sequence(num_outputs: int = 0, **sampling: object) -> TokenSequence:
    params = SamplingParams(max_tokens=10_000, **{"temperature": 1.0, **sampling})
    request = GenerateRequest(
        request_id="r", model="m", prompt_token_ids=(5,), sampling=params, slo=Slo(ttft_s=1, tbt_s=1)
    )
    sequence = TokenSequence.from_request(request, 0.0)
    sequence.token_ids += [7] * num_outputs
    return sequence


def sample(sequences: list[TokenSequence], step: int = 0, logits: torch.Tensor = LOGITS) -> list[SampledToken]:
    sampler = Sampler(sequences, EOS)
    return sampler.tokens(sampler.sample(logits.repeat(len(sequences), 1), step))


def histogram(num_draws: int, **sampling: object) -> np.ndarray:
    tokens = sample([make_sequence(seed=seed, **sampling) for seed in range(num_draws)])
    return np.bincount([t.token_id for t in tokens], minlength=VOCAB)


def chi_square(observed: np.ndarray, probabilities: np.ndarray) -> float:
    assert observed[probabilities == 0].sum() == 0, "a token that must never be drawn was drawn"
    kept = probabilities > 0
    expected = probabilities[kept] * observed.sum()
    return float(((observed[kept] - expected) ** 2 / expected).sum())


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_sample__temperature_zero__takes_the_most_probable() -> None:
    assert sample([make_sequence(temperature=0.0)] * 3) == [SampledToken(0)] * 3


# 27.9 is the 0.9995 quantile of chi-square with 8 degrees of freedom, an upper bound for fewer.
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sample__temperature__follows_the_scaled_distribution(temperature: float) -> None:
    observed = histogram(20_000, temperature=temperature)

    assert chi_square(observed, softmax(LOGITS.numpy() / temperature)) < 27.9


def test_sample__top_k__renormalises_the_k_most_probable() -> None:
    expected = np.where(np.arange(VOCAB) < 3, softmax(LOGITS.numpy()), 0.0)

    assert chi_square(histogram(20_000, top_k=3), expected / expected.sum()) < 27.9


def test_sample__top_p__keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = softmax(LOGITS.numpy())
    assert probabilities[:2].sum() < 0.7 < probabilities[:3].sum()
    expected = np.where(np.arange(VOCAB) < 3, probabilities, 0.0)

    assert chi_square(histogram(20_000, top_p=0.7), expected / expected.sum()) < 27.9


def test_sample__top_p_after_top_k__counts_mass_within_top_k() -> None:
    two = softmax(LOGITS.numpy()[:2])
    assert two[0] < 0.65  # so that top_p=0.65 of the two needs both, and 0.6 only the first
    assert set(np.flatnonzero(histogram(500, top_k=2, top_p=0.65))) == {0, 1}
    assert set(np.flatnonzero(histogram(500, top_k=2, top_p=0.6))) == {0}


@pytest.mark.parametrize(
    "extreme", [{"top_p": 1e-9}, {"top_k": 1}, {"temperature": 1e-30}, {"top_k": 10**6, "top_p": 0.0}]
)
def test_sample__extreme_parameters__leave_the_most_probable(extreme: dict[str, object]) -> None:
    assert set(np.flatnonzero(histogram(200, **extreme))) == {0}


def test_sample__same_seed_and_index__same_token_whatever_the_batch() -> None:
    mixed = [
        make_sequence(seed=4, num_outputs=9),
        make_sequence(temperature=0.0),
        make_sequence(seed=4, num_outputs=9, top_p=0.9),
        make_sequence(seed=5, top_k=4, logprobs=2),
    ]
    alone = [sample([sequence])[0].token_id for sequence in mixed]

    assert [t.token_id for t in sample(mixed)] == alone
    assert [t.token_id for t in sample(mixed[::-1])] == alone[::-1]


def test_sample__look_ahead_step__draws_as_the_later_output_index() -> None:
    for index in range(50):
        ahead = sample([make_sequence(seed=1, num_outputs=index)], step=3)
        later = sample([make_sequence(seed=1, num_outputs=index + 3)])
        assert ahead == later


def test_uniform__neighbouring_seeds_and_indices__are_uniform_and_uncorrelated() -> None:
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 200)
    indices = np.tile(np.arange(200, dtype=np.int64), 100)

    numbers = uniform(seeds, indices).reshape(100, 200)

    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # 0.9993 quantile of chi-square with 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize("seed", [-1, 2**64 + 17, 0])
def test_sample__any_integer_seed__is_accepted(seed: int) -> None:
    assert 0 <= sample([make_sequence(seed=seed)])[0].token_id < VOCAB


def test_sample__logprobs__are_of_the_raw_distribution() -> None:
    raw = np.log(softmax(LOGITS.numpy()))
    sequences = [
        make_sequence(temperature=0.0),
        make_sequence(temperature=0.3, top_k=2, logprobs=3, seed=2),
        make_sequence(temperature=0.0, logprobs=0),
        make_sequence(temperature=0.0, logprobs=20),
    ]

    plain, drawn, chosen_only, everything = sample(sequences)

    assert plain == SampledToken(0)
    assert drawn.logprob == pytest.approx(raw[drawn.token_id], abs=1e-5)
    assert [token_id for token_id, _ in drawn.top] == [0, 1, 2]
    assert [logprob for _, logprob in drawn.top] == pytest.approx(raw[:3].tolist(), abs=1e-5)
    assert chosen_only == SampledToken(0, pytest.approx(raw[0], abs=1e-5), ())
    assert len(everything.top) == VOCAB


def test_sample__below_min_tokens__ends_are_never_drawn() -> None:
    greedy = sample([make_sequence(temperature=0.0, min_tokens=2, logprobs=1)])[0]
    observed = histogram(2000, min_tokens=2)

    assert greedy.token_id == 2
    assert greedy.top[0][0] == 0  # the model's own favourite is reported, although it was not allowed
    assert math.isfinite(greedy.logprob or math.nan)
    assert observed[[0, 1]].sum() == 0
    assert sample([make_sequence(temperature=0.0, min_tokens=2, num_outputs=2)])[0].token_id == 0
    assert sample([make_sequence(temperature=0.0, min_tokens=2, num_outputs=1)], step=1)[0].token_id == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_sample__logits_not_finite__names_the_row_and_keeps_the_others(bad: float) -> None:
    logits = LOGITS.repeat(2, 1)
    logits[0, 3] = bad
    sequences = [make_sequence(temperature=0.7), make_sequence(temperature=0.7)]

    sampler = Sampler(sequences, EOS)
    sampled = sampler.sample(logits)

    assert sampled.broken_rows == {0}
    assert sampler.tokens(sampled)[1] == sample([make_sequence(temperature=0.7)])[0]


def sorted_whole(logits: torch.Tensor, sampling: SamplingParams, uniform_number: float) -> int:
    """The definition: the whole row in falling order, top-k, then top-p, then the inverse of what is left."""
    scaled = (logits - logits.max()).double() / max(sampling.temperature, 1e-12)
    ordered, token_ids = scaled.sort(descending=True, stable=True)
    if sampling.top_k > 0:
        ordered[sampling.top_k :] = float("-inf")
    probabilities = ordered.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    mass_before[0] = -1.0
    ordered[mass_before >= sampling.top_p] = float("-inf")
    cumulative = ordered.softmax(-1).cumsum(-1)
    return int(token_ids[torch.searchsorted(cumulative, uniform_number * cumulative[-1], right=True)])


def test_sample__large_vocabulary__draws_as_if_whole_rows_were_sorted() -> None:
    """Few tokens or nearly all are left, logits in float32 or rounded to many equal ones, some impossible."""
    vocabulary, generator = 20_000, torch.Generator().manual_seed(3)
    filters: list[dict[str, object]] = [
        {"top_p": p, "top_k": k, "temperature": t}
        for p in (1.0, 0.999999, 0.95, 0.3, 0.0)
        for k in (0, 1, 50, 5000, 19_999, 20_000, 10**6)
        for t in (0.1, 1.0, 3.0)
        if p < 1 or k > 0
    ]
    sequences = [make_sequence(seed=seed, num_outputs=2, **of) for seed, of in enumerate(filters)]
    logits = 2.5 * torch.randn(len(sequences), vocabulary, generator=generator)
    logits[::3] = (4 * logits[::3]).round() / 4
    logits[1::5, 7:15_000] = float("-inf")
    uniforms = uniform(np.arange(len(filters), dtype=np.uint64), np.full(len(filters), 2))

    sampler = Sampler(sequences, EOS)
    drawn = sampler.sample(logits.clone()).token_ids.tolist()

    expected = [
        sorted_whole(row, sequence.request.sampling, number)
        for row, sequence, number in zip(logits, sequences, uniforms, strict=True)
    ]
    assert drawn == expected
    assert len(set(drawn)) > len(drawn) / 3
