"""Draws of many rows at once are those of the CPU's sampler, row by row."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.executor.cuda.device_sampler import (
    NOT_FINITE,
    SamplingKind,
    SamplingRows,
    output_counts,
    sample_rows,
    sample_with_reports,
)
from pdmux_actor.executor.sampler import Sampler
from pdmux_actor.messages import GenerateRequest, LogitsProcessing, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

VOCABULARY = 97
SETTINGS = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 4},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.8},
)


def make_sequences(count: int, kinds: int, processing: LogitsProcessing | None = None) -> list[TokenSequence]:
    requests = [
        GenerateRequest(
            request_id=f"r{i}",
            model="m",
            prompt_token_ids=(1, 2),
            sampling=SamplingParams(max_tokens=4, seed=i, processing=processing, **SETTINGS[i % kinds]),
            slo=Slo(ttft_s=1.0, tbt_s=1.0),
        )
        for i in range(count)
    ]
    return [TokenSequence.from_request(request, 0.0) for request in requests]


def on_device(rows: SamplingRows, sequences: list[TokenSequence], num_rows: int) -> dict[str, torch.Tensor]:
    arrays = {**rows.arrays, "output_counts": output_counts(sequences, num_rows)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("kinds", "kind"), [(1, SamplingKind.GREEDY), (2, SamplingKind.DRAWN), (5, SamplingKind.DRAWN)]
)
def test_sample_rows__each_row_with_its_own_filters__tokens_of_the_cpu(kinds: int, kind: SamplingKind) -> None:
    sequences = make_sequences(25, kinds)
    logits = 3 * torch.randn(25, VOCABULARY, generator=torch.Generator().manual_seed(kinds))
    rows = SamplingRows.of(sequences, num_rows=30)
    parameters = on_device(rows, sequences, 30)
    logits[:, 40:60] = logits[:, 20:40].round()  # many are alike
    padded = torch.cat((logits, torch.zeros(5, VOCABULARY)))
    padded[3, 5] = float("nan")
    expected = Sampler(sequences, frozenset()).sample(logits.clone()).token_ids.tolist()
    expected[3] = NOT_FINITE

    sampled = sample_rows(padded, parameters, rows.kind)

    assert rows.kind is kind
    assert sampled[:25].tolist() == expected


def test_sample_with_reports__min_p_and_a_vocabulary_of_many_tiles__tokens_of_the_cpu() -> None:
    """Of more than 4,096 tokens the CPU does not sort all."""
    sequences = make_sequences(10, 5, LogitsProcessing(min_p=0.1))
    logits = 3 * torch.randn(10, 5000, generator=torch.Generator().manual_seed(1))
    rows = SamplingRows.of(sequences)
    parameters = on_device(rows, sequences, 10)

    by_cpu = Sampler(sequences, frozenset()).sample(logits.clone()).token_ids

    sample = sample_with_reports(logits.clone(), parameters, rows, torch.zeros(0, dtype=torch.int64))
    assert sample.token_ids.tolist() == by_cpu.tolist()
    temperatures = parameters["temperature"].clamp(min=1e-9)
    below = (logits.max(dim=-1).values - logits.gather(1, by_cpu[:, None]).squeeze(1)) / temperatures
    assert (below < -math.log(0.1)).all()
