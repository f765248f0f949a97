"""Bounds how much text one token can stand for: what is longer than a context of such tokens needs no tokenising."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

_COMPOSED = 4  # characters that a normalizer of Unicode may make one of
_KEEPING_NORMALIZERS = frozenset({"ByteLevel", "Lowercase", "NFC", "NFKC", "Prepend"})


def characters_per_token(tokenizer: Tokenizer) -> int | None:
    """A bound for any text; None where characters may vanish: dropped, stripped or fused into an unknown token."""
    state: Mapping[str, Any] = json.loads(tokenizer.to_str())
    if not _covers_every_byte(state):
        return None
    normalizers = list(_parts(state.get("normalizer"), "normalizers"))
    if not all(map(_keeps_characters, normalizers)):
        return None
    if any(part.get("behavior") == "Removed" for part in _parts(state.get("pre_tokenizer"), "pretokenizers")):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in state.get("added_tokens") or ()):
        return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return longest * (_COMPOSED if normalizers else 1)


def _covers_every_byte(state: Mapping[str, Any]) -> bool:
    """Byte-level, or with bytes to fall back to: a text of many unknown characters has as many tokens."""
    model = state.get("model") or {}
    parts = [*_parts(state.get("pre_tokenizer"), "pretokenizers"), *_parts(state.get("normalizer"), "normalizers")]
    is_byte_level = any(part["type"] == "ByteLevel" for part in parts)
    return model.get("type") == "BPE" and (is_byte_level or bool(model.get("byte_fallback")))


def _keeps_characters(normalizer: Mapping[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        replaced = normalizer["pattern"].get("String")
        return replaced is not None and len(normalizer["content"]) >= len(replaced)
    return normalizer["type"] in _KEEPING_NORMALIZERS


def _parts(component: Mapping[str, Any] | None, plural: str) -> Iterator[Mapping[str, Any]]:
    if component is None:
        return
    if component["type"] == "Sequence":
        for part in component[plural]:
            yield from _parts(part, plural)
    else:
        yield component
