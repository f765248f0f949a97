"""Trained weights: the demo's SmolLM2 says in our engine what it says in transformers, and it makes sense."""

from collections.abc import Iterator

import pytest
import torch
from cpu_rig import CpuRig, outputs
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers_greedy import greedy_tokens

from deploy.errors import DemoWeightsUnavailable
from deploy.local.demo_weights import DemoWeights, demo_weights

pytestmark = pytest.mark.weights
NEW_TOKENS = 24
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Water boils at", "Once upon a time there was a")


@pytest.fixture(scope="session")
def trained() -> DemoWeights:
    try:
        return demo_weights(lambda num_bytes: None)
    except DemoWeightsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def rig() -> Iterator[CpuRig]:
    rig = CpuRig(pool_mib=256, block_bytes=16384)
    yield rig
    rig.close()


def tokens(trained: DemoWeights) -> list[tuple[int, ...]]:
    tokenizer = AutoTokenizer.from_pretrained(trained.llama)
    return [tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]


def answers(rig: CpuRig, model: str, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    sequences = [rig.sequence(model, prompt, NEW_TOKENS) for prompt in prompts]
    rig.prefill(sequences, layers_per_slice=7)
    rig.decode(sequences, NEW_TOKENS - 1)
    return outputs(sequences, NEW_TOKENS)


def test_trained__float32__greedy_tokens_are_those_of_transformers_under_both_architectures(
    rig: CpuRig, trained: DemoWeights
) -> None:
    prompts = tokens(trained)
    reference = AutoModelForCausalLM.from_pretrained(trained.llama, dtype=torch.float32)
    expected = [greedy_tokens(reference, prompt, NEW_TOKENS) for prompt in prompts]

    for name, folder in (("llama", trained.llama), ("qwen2", trained.qwen2)):
        rig.load(name, folder, dtype="float32")
        assert answers(rig, name, prompts) == expected


def test_trained__float32__prompts_are_as_probable_as_in_transformers(rig: CpuRig, trained: DemoWeights) -> None:
    prompts = tokens(trained)
    reference = AutoModelForCausalLM.from_pretrained(trained.llama, dtype=torch.float32)
    rig.load("llama", trained.llama, dtype="float32")
    sequences = [rig.sequence("llama", prompt, 2, prompt_logprobs=1) for prompt in prompts]
    for launch in rig.prefill_slices(sequences, layers_per_slice=7):
        rig.executor.submit(launch)
        done = rig.wait()

    for place, prompt in enumerate(prompts):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0, :-1].log_softmax(dim=-1)
        told = done.prompt_logprobs[place]
        assert [one.token_id for one in told] == list(prompt[1:])
        chosen = expected.gather(1, torch.tensor(prompt[1:])[:, None]).squeeze(1)
        assert [one.logprob for one in told] == pytest.approx(chosen.tolist(), abs=1e-3)
        assert [one.top[0][0] for one in told] == expected.argmax(dim=-1).tolist()


def test_trained__bfloat16__knows_the_capital_of_france(rig: CpuRig, trained: DemoWeights) -> None:
    rig.load("llama", trained.llama, dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(trained.llama)

    (answer, *_) = answers(rig, "llama", tokens(trained))

    assert tokenizer.decode(answer).split()[0].strip(".,") == "Paris"
