"""Keeps one tokenizer for all models whose tokenizer.json is the same: fine-tunes of one base, most of a large fleet.

One of 150,000 words takes some 90 MiB and half a second.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from router.text.characters import characters_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTokenizer:
    """A tokenizer, which is not changed by its use, and what was read off its file. `digest` is the file's,
    `added_tokens` are as it has them, `is_qwen2` as `is_qwen2_state` says.
    """

    digest: str
    backend: Tokenizer
    added_tokens: Sequence[Mapping[str, Any]]
    is_qwen2: bool
    characters_per_token: int | None


class SharedTokenizers:
    def __init__(self) -> None:
        self._by_digest: dict[str, SharedTokenizer] = {}

    def of(self, file: Path) -> SharedTokenizer:
        """Raises what tokenizers and msgspec raise for a broken file."""
        text = file.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        shared = self._by_digest.get(digest)
        if shared is None:
            shared = self._by_digest[digest] = _read(digest, text)
        return shared

    def keep(self, digests: Collection[str]) -> None:
        """Forgets all others."""
        self._by_digest = {digest: kept for digest, kept in self._by_digest.items() if digest in digests}


def _read(digest: str, text: bytes) -> SharedTokenizer:
    state, backend = msgspec.json.decode(text, type=dict[str, Any]), Tokenizer.from_buffer(text)
    return SharedTokenizer(
        digest=digest,
        backend=backend,
        added_tokens=state.get("added_tokens") or (),
        is_qwen2=is_qwen2_state(state),
        characters_per_token=characters_per_token(backend),
    )


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
