"""Greedy tokens as transformers gives them: what our engine's are held against."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def greedy_tokens(
    model: Any, prompt: Sequence[int], num_tokens: int, *, likely: Sequence[int] | None = None, **changes: Any
) -> list[int]:
    """`num_tokens` that follow the prompt, whatever ends a text. `changes` are options of `generate`. `likely` is what
    a test that passes finds: one look at all of it says whether each is the model's choice after those before; where
    one is not, the model chooses them one by one.
    """
    if likely is not None and list(likely) == choices_along(model, prompt, likely):
        assert len(likely) == num_tokens
        return list(likely)
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False,
            eos_token_id=None, pad_token_id=0, **changes,
        )  # fmt: skip
    return made[0, len(prompt) :].tolist()


def choices_along(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """What the model chooses in place of each token, after the prompt and the tokens before it."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens[:-1]]])).logits[0]
    return logits[len(prompt) - 1 :].argmax(-1).tolist()


def greedy_texts(checkpoint: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[int, str]:
    """What transformers answers to each prompt, by its number."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return {number: tokenizer.decode(greedy_tokens(model, ids, num_tokens)) for number, ids in enumerate(prompts)}
