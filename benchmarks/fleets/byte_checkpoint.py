"""Checkpoints without weights, for simulated devices."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from pdmux_actor.models.demo_tokenizer import CHAT_TEMPLATE, TURN_END, TURN_START


def write_checkpoint(folder: Path, shape: tuple[int, ...]) -> None:
    """A config to simulate, and a tokenizer in which a token is a byte: whatever the engine makes up is text."""
    folder.mkdir(parents=True)
    layers, hidden, intermediate, heads, kv_heads, head_dim = shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": TURN_END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def byte_tokenizer() -> Tokenizer:
    # ByteLevel stands for printable bytes as themselves and for the others as what follows U+0100.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    characters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokenizer = Tokenizer(BPE(vocab={characters[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (TURN_START, TURN_END)])
    return tokenizer
