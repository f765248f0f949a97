"""Works out how long a sequence can get."""

from pdmux_actor.model_info import ModelInfo


def longest_sequence_tokens(info: ModelInfo, quota_blocks: int) -> int:
    """Tokens of the longest sequence that the model's context and its token-block quota both admit."""
    quota_rows = quota_blocks // info.geometry.blocks_per_row
    return min(info.max_model_len, quota_rows * info.geometry.tokens_per_row)
