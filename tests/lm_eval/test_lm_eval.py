"""What lm-eval makes of our replies: its log-likelihoods and texts are those that the unit said.

That units say what transformers say is shown in tests/pdmux_actor (test_prompt_logprobs, test_trained_weights).
"""

from pathlib import Path

import pytest
from capitals_task import MAX_TOKENS, Item, items
from fake_unit import SPEECH, prompt_logprob
from lm_eval_run import evaluate
from served_gateway import ServedGateway


def loglikelihoods(item: Item) -> list[float]:
    """What the fake unit says of each choice."""
    return [sum(map(prompt_logprob, f" {choice}".encode())) for choice in item.choices]


async def test_local_completions__loglikelihood__is_what_the_unit_said(served: ServedGateway, tmp_path: Path) -> None:
    metrics, samples = await evaluate(
        "capitals_chosen",
        "local-completions",
        f"{served.url}/v1/completions",
        tmp_path,
        "--batch_size",
        "8",
        tokenizer=served.folder,
        tokenizer_backend="huggingface",
    )

    right = 0
    for item, sample in zip(items(), samples, strict=True):
        expected = loglikelihoods(item)
        assert [float(response[0][0]) for response in sample["resps"]] == pytest.approx(expected)
        right += max(range(4), key=expected.__getitem__) == item.answer
    assert (len(samples), metrics["acc,none"]) == (50, pytest.approx(right / 50))


@pytest.mark.parametrize("chat", [False, True])
async def test_generate_until__text_and_chat__is_what_the_unit_said(
    served: ServedGateway, tmp_path: Path, chat: bool
) -> None:
    task, api, path = "capitals_written", "local-completions", "/v1/completions"
    extra, tokenizer = [], {"tokenizer": served.folder, "tokenizer_backend": "huggingface"}
    if chat:
        task, api, path = "capitals_asked", "local-chat-completions", "/v1/chat/completions"
        extra, tokenizer = ["--apply_chat_template"], {}

    _, samples = await evaluate(task, api, f"{served.url}{path}", tmp_path, *extra, **tokenizer)

    said = SPEECH.encode()[:MAX_TOKENS].decode()
    assert [sample["resps"][0][0] for sample in samples] == [said] * 50
