"""KV of a prompt's beginning on its way from one engine's prefix cache to another's. Plain data, encoded by msgspec."""

import msgspec


class PromptStart(msgspec.Struct, frozen=True, kw_only=True):
    """Names KV by the prompt that it belongs to. Each engine names its rows by itself: an adapter's prefixes have other
    names in each of them.
    """

    model: str
    token_ids: tuple[int, ...]
    cache_salt: str = ""


class RowLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Says what the bytes of a row are: rows go from engine to engine only where this is the same in both."""

    tokens_per_row: int
    row_bytes: int
    dtype: str


class PrefixRows(msgspec.Struct, frozen=True, kw_only=True):
    """Holds rows `[first_row, first_row + num_rows)` of a prompt, one after the other, block by block without slack."""

    first_row: int
    num_rows: int
    layout: RowLayout
    data: bytes


class KeptRows(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the rows that a prompt fills: the first `num_rows` are in the cache, `num_missing` are not."""

    num_rows: int
    num_missing: int


NOTHING_KEPT = KeptRows(num_rows=0, num_missing=0)
"""Of a prompt whose KV is not shared: no row of it is looked for anywhere."""
