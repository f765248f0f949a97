"""Changes how SGLang samples: seeds, and schemas of outputs that another unit began.

As in hooks.py: each gets the original first, `Any` is SGLang's, names are those of 0.5.23.
"""

from collections.abc import Callable
from typing import Any

from pdmux_actor.backends.sglang.snapshot import DONE_KEY

_NO_SEED = 42  # SGLang's, for requests without

Original = Callable[..., Any]


def grammar_is_ready(original: Original, manager: Any, req: Any) -> None:
    """A request that goes on after another unit has output of before the prompt's end: the grammar is past that."""
    from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject

    original(manager, req)
    done = (req.sampling_params.custom_params or {}).get(DONE_KEY, 0)
    if not done or isinstance(req.grammar, InvalidGrammarObject):
        return
    try:
        for token_id in req.origin_input_ids[-done:]:
            req.grammar.accept_token(token_id)
    except (KeyError, RuntimeError, ValueError) as error:  # xgrammar, llguidance and outlines each have theirs
        req.set_finish_with_abort(f"The output so far does not follow the grammar: {error}")


def from_schedule_batch(original: Original, cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang heeds seeds with deterministic inference only, though its sampling in torch can by itself."""
    info = original(cls, batch, *args, **kwargs)
    from sglang.srt.runtime_context import get_exec

    if info.sampling_seed is None and get_exec().kernel.sampling_backend == "pytorch":
        import torch  # the process has it

        seeds = [req.sampling_params.sampling_seed for req in batch.reqs]
        seeds = [_NO_SEED if seed is None else seed for seed in seeds]
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64).to(batch.device, non_blocking=True)
    return info
