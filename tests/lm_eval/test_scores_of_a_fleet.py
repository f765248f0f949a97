"""lm-eval's scores of a fleet with trained weights are those of transformers on the same weights, item by item."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from capitals_task import ASKED, COMPLETED, MAX_TOKENS, Item, items
from lm_eval_run import evaluate

from deploy.errors import DemoWeightsUnavailable
from deploy.local.demo_weights import demo_weights

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from fleet_files import trained_fleet_file
from fleet_process import running_fleet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytestmark = [pytest.mark.ray, pytest.mark.weights]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    try:
        return demo_weights(lambda num_bytes: None).llama
    except DemoWeightsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def url(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a fleet that serves `smollm2` in float32."""
    with running_fleet(
        trained_fleet_file(tmp_path_factory.mktemp("fleet"), checkpoint, gateway={}, dtype="float32")
    ) as process:
        yield process.url


@pytest.fixture(scope="module")
def network(checkpoint: Path) -> "PreTrainedModel":
    # Not at the top: it imports Triton, and tests/pdmux_actor/cuda, collected later, choose its interpreter before.
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def scores(
    task: str, api: str, url: str, folder: Path, *arguments: str, **of_model: object
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    return asyncio.run(evaluate(task, api, url, folder, *arguments, model="smollm2", **of_model))


def continuation_logprob(network, tokenizer, context: str, continuation: str) -> float:
    ids, start = tokenizer(context + continuation)["input_ids"], len(tokenizer(context)["input_ids"])
    with torch.inference_mode():
        logprobs = network(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    return sum(float(logprobs[place - 1, ids[place]]) for place in range(start, len(ids)))


def greedy(network, tokenizer, ids: list[int]) -> str:
    with torch.inference_mode():
        out = network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True).split("\n")[0]


def first_word_is_right(text: str, item: Item) -> bool:
    return re.findall(r"(\w+)", text)[:1] == [item.capital]


def test_local_completions__loglikelihood__is_that_of_transformers(
    url, checkpoint, network, tokenizer, tmp_path
) -> None:
    its_own = {"tokenizer": checkpoint, "tokenizer_backend": "huggingface"}
    at = f"{url}/v1/completions"
    metrics, samples = scores("capitals_chosen", "local-completions", at, tmp_path, "--batch_size", "8", **its_own)

    right = 0
    for item, sample in zip(items(), samples, strict=True):
        context = COMPLETED.format(country=item.country)
        expected = [continuation_logprob(network, tokenizer, context, f" {choice}") for choice in item.choices]
        assert [float(response[0][0]) for response in sample["resps"]] == pytest.approx(expected, abs=2e-3)
        right += max(range(4), key=lambda place: expected[place]) == item.answer
    assert metrics["acc,none"] == pytest.approx(right / len(samples))
    assert (len(samples), right > 30) == (50, True)


def test_local_completions__generate_until__is_what_transformers_say(
    url, checkpoint, network, tokenizer, tmp_path
) -> None:
    its_own = {"tokenizer": checkpoint, "tokenizer_backend": "huggingface"}
    metrics, samples = scores("capitals_written", "local-completions", f"{url}/v1/completions", tmp_path, **its_own)

    expected = [
        greedy(network, tokenizer, tokenizer(COMPLETED.format(country=item.country))["input_ids"]) for item in items()
    ]
    assert [sample["resps"][0][0] for sample in samples] == expected
    right = sum(map(first_word_is_right, expected, items()))
    assert metrics["exact_match,first-word"] == pytest.approx(right / 50)


def test_local_chat_completions__is_what_transformers_say(url, network, tokenizer, tmp_path) -> None:
    at = f"{url}/v1/chat/completions"
    metrics, samples = scores("capitals_asked", "local-chat-completions", at, tmp_path, "--apply_chat_template")

    expected = []
    for item in items():
        messages = [{"role": "user", "content": ASKED.format(country=item.country)}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        expected.append(greedy(network, tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"]))
    assert [sample["resps"][0][0] for sample in samples] == expected
    right = sum(map(first_word_is_right, expected, items()))
    assert metrics["exact_match,first-word"] == pytest.approx(right / 50)
