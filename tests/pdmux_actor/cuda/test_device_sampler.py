"""Draws of many rows at once are those of the CPU's sampler, row by row."""

import pytest
import torch

from pdmux_actor.executor.cuda.device_sampler import NOT_FINITE, SamplingKind, SamplingRows, sample_rows
from pdmux_actor.executor.sampler import Sampler
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.sequence import TokenSequence

VOCABULARY = 97
SETTINGS = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 4},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.8},
)


def make_sequences(count: int, kinds: int) -> list[TokenSequence]:
    requests = [
        GenerateRequest(
            request_id=f"r{i}",
            model="m",
            prompt_token_ids=(1, 2),
            sampling=SamplingParams(max_tokens=4, seed=i, **SETTINGS[i % kinds]),
            slo=Slo(ttft_s=1.0, tbt_s=1.0),
        )
        for i in range(count)
    ]
    return [TokenSequence.from_request(request, 0.0) for request in requests]


@pytest.mark.parametrize(
    ("kinds", "kind"), [(1, SamplingKind.GREEDY), (2, SamplingKind.DRAWN), (5, SamplingKind.FILTERED)]
)
def test_sample_rows__more_than_are_drawn_at_once__tokens_of_the_cpu(kinds: int, kind: SamplingKind) -> None:
    sequences = make_sequences(140, kinds)
    logits = 3 * torch.randn(140, VOCABULARY, generator=torch.Generator().manual_seed(kinds))
    rows = SamplingRows.of(sequences, num_rows=150)
    parameters = {name: torch.from_numpy(array) for name, array in rows.arrays.items()}
    logits[:, 40:60] = logits[:, 20:40].round()  # many are alike
    padded = torch.cat((logits, torch.zeros(10, VOCABULARY)))
    padded[3, 5] = float("nan")
    expected = Sampler(sequences, frozenset()).sample(logits.clone()).token_ids.tolist()
    expected[3] = NOT_FINITE

    sampled = sample_rows(padded, parameters, parameters["uniforms"][0], rows.kind)

    assert rows.kind is kind
    assert sampled[:140].tolist() == expected
