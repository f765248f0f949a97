"""Works out how a model lays its KV into the pool's blocks."""

from dataclasses import dataclass

from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """A block holds K and V of one KV head in one layer for `tokens_per_row` tokens.

    A row is the set of `blocks_per_row` = layers x KV heads blocks that hold the same tokens; block (layer, head) of
    row r is `row_table[r, layer * num_kv_heads + head]`.
    """

    blocks_per_row: int
    tokens_per_row: int

    @classmethod
    def of(cls, spec: ModelSpec, block_bytes: int) -> "KvGeometry":
        """The most tokens whose K and V fit a block; the rest of the block is slack.

        >>> spec = ModelSpec(architecture="LlamaForCausalLM", num_layers=4, hidden_size=128, intermediate_size=256,
        ...     num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=512, max_position_embeddings=1024,
        ...     tie_word_embeddings=False, dtype="float32")
        >>> KvGeometry.of(spec, block_bytes=8192)
        KvGeometry(blocks_per_row=8, tokens_per_row=32)
        """
        return cls(
            blocks_per_row=spec.num_layers * spec.num_kv_heads,
            tokens_per_row=block_bytes // (2 * spec.head_dim * spec.dtype_bytes),
        )
