"""Greedy tokens as transformers gives them: what our engine's are held against."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def greedy_tokens(model: Any, prompt: Sequence[int], num_tokens: int, **changes: Any) -> list[int]:
    """`num_tokens` that follow the prompt, whatever ends a text. `changes` are options of `generate`."""
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False,
            eos_token_id=None, pad_token_id=0, **changes,
        )  # fmt: skip
    return made[0, len(prompt) :].tolist()


def greedy_texts(checkpoint: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> dict[int, str]:
    """What transformers answers to each prompt, by its number."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return {number: tokenizer.decode(greedy_tokens(model, ids, num_tokens)) for number, ids in enumerate(prompts)}
