"""Writes a GGUF file of one layer, of nothing but zeros."""

from pathlib import Path

import gguf
import numpy as np


def write_tiny_gguf(file: Path, kind: gguf.GGMLQuantizationType, *, tensors_each: int = 0) -> None:
    """`tensors_each`: in several files of so many tensors."""
    writer = gguf.GGUFWriter(file, "llama", split_max_tensors=tensors_each)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<end>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 3 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(np.zeros((64, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
