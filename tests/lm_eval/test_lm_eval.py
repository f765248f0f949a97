"""What lm-eval makes of our replies: its log-likelihoods and texts are those that the unit said.

That units say what transformers say is shown in tests/pdmux_actor (test_prompt_logprobs, test_trained_weights).
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from capitals_task import MAX_TOKENS, Item, items, write_tasks
from conftest import PROGRAM
from fake_unit import SPEECH, prompt_logprob
from served_gateway import ServedGateway

LM_EVAL_TIMEOUT_S = 240.0


async def evaluate(
    task: str, model: str, url: str, folder: Path, *arguments: str, **model_arguments: object
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics of the task, and its samples in the order of the documents."""
    write_tasks(folder)
    told = {"model": "demo/bytes", "base_url": url, "num_concurrent": 4, "max_retries": 1, **model_arguments}
    command = ["--model", model, "--model_args", ",".join(f"{name}={value}" for name, value in told.items())]
    command += ["--tasks", task, "--include_path", str(folder), "--output_path", str(folder), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *command,
        *arguments,
        env={**os.environ, **offline},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LM_EVAL_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()[-3000:]
    return written(folder, task)


def written(folder: Path, task: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"][task], sorted(rows, key=lambda row: row["doc_id"])


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
    task, model, path = "capitals_written", "local-completions", "/v1/completions"
    extra, tokenizer = [], {"tokenizer": served.folder, "tokenizer_backend": "huggingface"}
    if chat:
        task, model, path = "capitals_asked", "local-chat-completions", "/v1/chat/completions"
        extra, tokenizer = ["--apply_chat_template"], {}

    _, samples = await evaluate(task, model, f"{served.url}{path}", tmp_path, *extra, **tokenizer)

    said = SPEECH.encode()[:MAX_TOKENS].decode()
    assert [sample["resps"][0][0] for sample in samples] == [said] * 50
