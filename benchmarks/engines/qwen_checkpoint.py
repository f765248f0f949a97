"""A checkpoint of random weights in the shape of Qwen2.5-0.5B: of 494 M parameters 136 M are embeddings."""

import shutil
from pathlib import Path


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
