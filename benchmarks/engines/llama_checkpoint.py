"""Random checkpoints for the benchmarks, written once into a cache folder."""

import shutil
from dataclasses import replace
from pathlib import Path

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

DEFAULT_CACHE = Path.home() / ".cache" / "muxfleet" / "benchmarks"


def llama_shape(num_layers: int) -> CheckpointShape:
    """6.3 M parameters a layer: 16 layers are about 100 M."""
    return replace(shape_of(num_layers, 768, 2048, 12, 4), max_position_embeddings=8192)


def shape_of(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> CheckpointShape:
    """A Llama with heads of 64."""
    return CheckpointShape(
        model_type="llama",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
    )


def wide_llama_checkpoint(cache: Path) -> Path:
    """200 M parameters in 8 layers, whose products are as large as those of a model of a billion."""
    return _written_once(cache / "llama-wide", shape_of(8, 1536, 4096, 24, 8), seed=0)


def llama_checkpoint(cache: Path, *, num_layers: int, seed: int = 0) -> Path:
    return _written_once(cache / f"llama-{num_layers}-layers-{seed}", llama_shape(num_layers), seed)


def mixture_checkpoint(cache: Path) -> Path:
    """4 of 16 experts for a token, of 1.2 M parameters each, in 4 layers."""
    return _written_once(cache / "qwen3-moe-4-of-16", _beside_mixture("qwen3_moe", 512), seed=0)


def dense_beside_mixture(cache: Path) -> Path:
    """Its MLP is as large as the experts that a token of `mixture_checkpoint` passes."""
    return _written_once(cache / "qwen3-beside-mixture", _beside_mixture("qwen3", 4 * 512), seed=0)


def _beside_mixture(model_type: str, intermediate_size: int) -> CheckpointShape:
    llama = shape_of(4, 768, intermediate_size, 12, 4)
    return replace(llama, model_type=model_type, num_experts=16, experts_per_token=4)


def _written_once(folder: Path, shape: CheckpointShape, seed: int) -> Path:
    complete = folder / "complete"
    if not complete.exists():
        write_random_checkpoint(folder, shape, seed)
        complete.touch()
    return folder


def qwen_checkpoint(cache: Path) -> Path:
    """Written once, by transformers, in bfloat16. Each of its 151,936 tokens has a text, `t0` to `t151935`."""
    folder = cache / "qwen2.5-0.5b-shape"
    if folder.exists():
        return folder
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(unfinished)
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(config.vocab_size)}, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t0", eos_token="t1").save_pretrained(unfinished)
    return unfinished.rename(folder)
