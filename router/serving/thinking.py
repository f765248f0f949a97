"""Bounds how long a model may think: what ends its thoughts for it."""

from router.generation import ReplyShape, ThinkingBudget
from router.text.reply_templates import REASONING_FIELDS
from router.text.tokenization import Tokenizers
from router.view import ModelCard


async def thinking_budget(
    tokens: int, shape: ReplyShape | None, card: ModelCard, tokenizers: Tokenizers
) -> ThinkingBudget | None:
    """None: the model's thoughts, if it has any, are not between two marks. Raises as `Tokenizers.encode`."""
    if shape is None:
        return None
    fields = shape.template["fields"]
    name = next((name for name in REASONING_FIELDS if name in fields), "")
    opens, closes = (fields.get(name, {}).get(key) for key in ("open", "close"))
    if not isinstance(opens, str) or not isinstance(closes, str):
        return None
    end = f"\n{closes}\n\n" if closes.startswith("</") else closes
    token_ids = await tokenizers.encode(card, end, add_special_tokens=False, max_tokens=len(end))
    return ThinkingBudget(
        tokens=tokens,
        opens=opens,
        closes=closes,
        is_open=shape.prompt_end.rstrip().endswith(opens.rstrip()),
        end=end,
        end_token_ids=tuple(token_ids),
    )
