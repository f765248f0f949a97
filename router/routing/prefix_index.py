"""Remembers which units may still hold the KV of a prompt's start."""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from pdmux_actor.kv.prefix_cache import TOKEN_BYTES, prefix_root

BLOCK_TOKENS = 64
_MAX_BLOCKS = 128  # longer prefixes count as this long
_UNITS_PER_PREFIX = 4


def prefix_names(model: str, token_ids: Sequence[int], salt: str = "") -> tuple[bytes, ...]:
    """Names of the prompt's first 1, 2, 3 ... blocks of BLOCK_TOKENS tokens, others for every `salt`.

    BLAKE2b as in the engines' prefix caches: with a hash that a client can steer, it could pull others' requests to a
    unit of its choice.

    >>> short, long = prefix_names("m", range(130)), prefix_names("m", range(200))
    >>> len(short), len(long), long[:2] == short, prefix_names("other", range(130)) == short
    (2, 3, True, False)
    """
    names: list[bytes] = []
    name = prefix_root(salt) + model.encode() if salt else model.encode()
    tokens = token_ids[: _MAX_BLOCKS * BLOCK_TOKENS]
    data = struct.pack(f"{len(tokens)}q", *tokens)
    step = BLOCK_TOKENS * TOKEN_BYTES
    for start in range(0, len(data) - step + 1, step):
        digest = hashlib.blake2b(name, digest_size=16)
        digest.update(data[start : start + step])
        name = digest.digest()
        names.append(name)
    return tuple(names)


class PrefixIndex:
    """Remembers where prefixes and conversations went, the least recently used are forgotten. It is a guess: engines
    evict what they need room for, so its word counts for time saved, never for correctness.
    """

    def __init__(self, *, max_entries: int = 65_536) -> None:
        self._max_entries = max_entries
        self._units: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._conversations: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._known_units: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._units) + len(self._conversations)

    def record(self, prefix: Sequence[bytes], unit_id: str, *, model: str, conversation: str, tokens: int) -> None:
        """A prompt of `tokens` tokens went to the unit."""
        if unit_id not in self._known_units:
            self._known_units |= {unit_id}
        for name in reversed(prefix):  # a start is used no earlier than what goes on from it, and outlives it
            known = self._units.get(name, ())
            if not known or known[0] != unit_id:
                self._units[name] = (unit_id, *(u for u in known if u != unit_id))[:_UNITS_PER_PREFIX]
            self._units.move_to_end(name)
        if conversation:
            self._conversations[model, conversation] = (unit_id, tokens)
            self._conversations.move_to_end((model, conversation))
        while len(self) > self._max_entries:
            (self._units if len(self._units) >= len(self._conversations) else self._conversations).popitem(last=False)

    def matched_tokens(
        self, prefix: Sequence[bytes], *, model: str, conversation: str, tokens: int
    ) -> Mapping[str, int]:
        """Returns, by unit, how many of the prompt's tokens its cache may hold."""
        matched: dict[str, int] = {}
        longest = self._longest_known(prefix)
        for length in range(longest, 0, -1):
            for unit_id in self._units.get(prefix[length - 1], ()):
                matched.setdefault(unit_id, length * BLOCK_TOKENS)
            if len(matched) >= _UNITS_PER_PREFIX:
                break
        if conversation and (last := self._conversations.get((model, conversation))) is not None:
            unit_id, known_tokens = last
            matched[unit_id] = max(matched.get(unit_id, 0), min(known_tokens, tokens - 1))
        return matched

    def forget_units_but(self, unit_ids: Iterable[str]) -> None:
        """Units that left the fleet took their caches along."""
        alive = frozenset(unit_ids)
        gone, self._known_units = self._known_units - alive, self._known_units & alive
        if not gone:  # nearly always: looking through all entries takes milliseconds
            return
        for name in [n for n, units in self._units.items() if not alive.issuperset(units)]:
            left = tuple(u for u in self._units[name] if u in alive)
            if left:
                self._units[name] = left
            else:
                del self._units[name]
        for key in [k for k, (unit_id, _) in self._conversations.items() if unit_id not in alive]:
            del self._conversations[key]

    def _longest_known(self, prefix: Sequence[bytes]) -> int:
        """The known names are a start of `prefix`: ends are forgotten first. Only when the last units that a start is
        known on leave together, while another one still has what goes on from it, is that one missed.
        """
        low, high = 0, len(prefix)
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle - 1] in self._units:
                low = middle
            else:
                high = middle - 1
        return low
