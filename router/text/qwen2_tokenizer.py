"""Recognises a tokenizer.json that transformers' Qwen2Tokenizer would build anew as it is: of Qwen 2, 2.5 and 3."""

from collections.abc import Mapping
from typing import Any

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT: Mapping[str, Any] = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
_BYTES: Mapping[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
_UNSET = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_FALSE = ("fuse_unk", "byte_fallback", "ignore_merges")


def is_qwen2_state(state: Mapping[str, Any]) -> bool:
    """`state` is what tokenizer.json says, whose added tokens tokenizer_config.json declares all, or none. They follow
    the vocabulary without a gap, as they do when they are added to it.
    """
    model, added = state["model"], state.get("added_tokens") or ()
    if model.get("type") != "BPE" or any(model.get(name) for name in (*_UNSET, *_FALSE)):
        return False
    steps = (state.get("pre_tokenizer") or {}).get("pretokenizers") or ()
    splits = [{name: value for name, value in step.items() if name != "trim_offsets"} for step in steps]
    new = sorted(token["id"] for token in added if token["content"] not in model["vocab"])
    return (
        state.get("normalizer") == {"type": "NFC"}
        and splits == [_SPLIT, _BYTES]
        and (state.get("decoder") or {}).get("type") == "ByteLevel"
        and new == list(range(len(model["vocab"]), len(model["vocab"]) + len(new)))
    )
