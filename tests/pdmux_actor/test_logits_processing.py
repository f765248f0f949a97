"""Each processor against transformers' of the same name, on the same logits."""

import math
from collections import Counter

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pdmux_actor.executor.logits_processing import LogitsProcessor
from pdmux_actor.executor.sampler import Sampler
from pdmux_actor.messages import GenerateRequest, LogitsProcessing, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

VOCABULARY = 61
PROMPT, OUTPUT = (3, 4, 4, 9, 17), (9, 5, 5, 5, 30, 4)
BAD_WORDS = ((7,), (30, 4, 11), (4, 12), (5, 13), (60, 1, 2, 3))
BIAS = ((2, 5.0), (9, -7.5), (40, 100.0), (41, -100.0))


def make_sequence(num_outputs=6, *, processing=None, **sampling):
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt_token_ids=PROMPT,
        output_token_ids=OUTPUT[:num_outputs],
        sampling=SamplingParams(max_tokens=99, processing=processing, **sampling),
        slo=Slo(ttft_s=1.0, tbt_s=1.0),
    )
    return TokenSequence.from_request(request, 0.0)


def logits_of(rows, seed=0):
    return 4 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def known_ids(num_outputs=6):
    return torch.tensor([[*PROMPT, *OUTPUT[:num_outputs]]])


def processed(processing, logits, **sampling):
    """Of that row alone, between two that ask for other things."""
    neighbours = [make_sequence(), make_sequence(2, processing=LogitsProcessing(frequency_penalty=1.0, min_p=0.5))]
    sequences = [neighbours[0], make_sequence(processing=processing, **sampling), neighbours[1]]
    batch = logits.repeat(3, 1)
    processor = LogitsProcessor.of(sequences)
    processor.apply(batch)
    assert torch.equal(batch[0], logits[0]), "a row that asked for nothing"
    return batch[1:2]


@pytest.mark.parametrize(
    ("processing", "theirs"),
    [
        (LogitsProcessing(repetition_penalty=1.7), [RepetitionPenaltyLogitsProcessor(1.7)]),
        (LogitsProcessing(repetition_penalty=0.6), [RepetitionPenaltyLogitsProcessor(0.6)]),
        (LogitsProcessing(logit_bias=BIAS), [SequenceBiasLogitsProcessor([[[t], bias] for t, bias in BIAS])]),
        (LogitsProcessing(bad_words=BAD_WORDS), [NoBadWordsLogitsProcessor([list(w) for w in BAD_WORDS])]),
        (
            LogitsProcessing(logit_bias=BIAS, repetition_penalty=1.3, bad_words=BAD_WORDS),
            [
                SequenceBiasLogitsProcessor([[[t], bias] for t, bias in BIAS]),
                RepetitionPenaltyLogitsProcessor(1.3),
                NoBadWordsLogitsProcessor([list(w) for w in BAD_WORDS]),
            ],
        ),
    ],
)
def test_processor__of_each_kind_and_all__as_transformers(processing, theirs) -> None:
    logits = logits_of(1)

    expected = LogitsProcessorList(theirs)(known_ids(), logits.clone())

    assert torch.allclose(processed(processing, logits), expected, atol=1e-6)


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, 0.7), (-1.5, 2.0)])
def test_processor__frequency_and_presence__openais_formula_over_the_output(frequency: float, presence: float) -> None:
    logits = logits_of(1)
    expected = logits.clone()
    for token_id, times in Counter(OUTPUT).items():
        expected[0, token_id] -= times * frequency + presence

    changed = processed(LogitsProcessing(frequency_penalty=frequency, presence_penalty=presence), logits)

    assert torch.allclose(changed, expected, atol=1e-5)


def test_processor__look_ahead__counts_what_the_launch_sampled() -> None:
    processing = LogitsProcessing(repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3)
    logits = logits_of(2)
    earlier = [torch.tensor([9, OUTPUT[4]]), torch.tensor([44, OUTPUT[5]])]
    ahead, known = logits.clone(), logits.clone()

    LogitsProcessor.of([make_sequence(), make_sequence(4, processing=processing)]).apply(ahead, earlier)
    LogitsProcessor.of([make_sequence(), make_sequence(6, processing=processing)]).apply(known)

    assert torch.allclose(ahead, known, atol=1e-5)


def test_processor__stop_tokens_before_min_tokens__never_drawn() -> None:
    stops = tuple(range(0, VOCABULARY, 2))
    logits = logits_of(1)
    theirs = MinLengthLogitsProcessor(len(PROMPT) + 8, list(stops))(known_ids(), logits.clone())

    assert torch.equal(processed(None, logits, stop_token_ids=stops, min_tokens=8), theirs)
    enough = [make_sequence(stop_token_ids=stops, min_tokens=6)]
    assert LogitsProcessor.of(enough) is None

    processor = LogitsProcessor.of([make_sequence(stop_token_ids=stops, min_tokens=7)])
    second = logits.clone()
    processor.apply(second, [torch.tensor([1])])
    assert torch.equal(second, logits), "the second step of a look-ahead is long enough"


def test_processor__nobody_asks__is_none() -> None:
    assert LogitsProcessor.of([make_sequence(), make_sequence(stop_token_ids=(3,))]) is None


def draws(sampling, processing, count=4000):
    sequences = [make_sequence(seed=seed, processing=processing, **sampling) for seed in range(count)]
    logits = logits_of(1, seed=5).repeat(count, 1)
    return torch.bincount(Sampler(sequences, frozenset()).sample(logits).token_ids, minlength=VOCABULARY)


@pytest.mark.parametrize("min_p", [0.02, 0.4])
@pytest.mark.parametrize(
    ("sampling", "theirs"),
    [
        ({"temperature": 1.3}, [TemperatureLogitsWarper(1.3)]),
        (
            {"temperature": 2.0, "top_k": 9, "top_p": 0.8},
            [TemperatureLogitsWarper(2.0), TopKLogitsWarper(9), TopPLogitsWarper(0.8)],
        ),
    ],
)
def test_min_p__after_temperature_and_filters__draws_from_what_transformers_leaves(min_p, sampling, theirs) -> None:
    left = LogitsProcessorList([*theirs, MinPLogitsWarper(min_p)])(known_ids(), logits_of(1, seed=5))[0].softmax(dim=-1)

    counts = draws(sampling, LogitsProcessing(min_p=min_p))

    assert {i for i, n in enumerate(counts.tolist()) if n} == set(left.nonzero().squeeze(1).tolist())
    for token_id, probability in enumerate(left.tolist()):
        deviation = 5 * math.sqrt(4000 * probability * (1 - probability)) + 1e-9
        assert abs(int(counts[token_id]) - 4000 * probability) <= deviation
