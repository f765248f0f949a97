"""Makes up what a simulated model says where it is asked for a form or for embeddings: outputs in a form soon end, and
embeddings are noise.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, PrefillSlice
from profiler.specs import ModelSpec

_CLOSING, _PLAIN, _LIST, _OBJECT, _LONG, _SPACE = range(6)
_BY_TEXT: Mapping[bytes, int] = {b'"': _CLOSING, b"}": _CLOSING, b"]": _CLOSING, b"[": _LIST, b"{": _OBJECT}


class SoonEnding:
    """One per model's tokens."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts
        self._in_json = np.array([_rank_in_json(text) for text in texts], dtype=np.int8)
        self._elsewhere = np.array([_PLAIN if len(text) == 1 else _LONG for text in texts], dtype=np.int8)

    def choose(self, allowed: npt.NDArray[np.int64], forced: bytes, salt: int, *, in_json: bool) -> int:
        """`forced` is text that must come; else strings, lists and objects of JSON are closed as soon as they may be,
        and of what is left over (the digits of a number, the letters of a pattern) `salt` picks one.
        """
        if forced:
            fitting: list[int] = [i for i in allowed.tolist() if self._texts[i] and forced.startswith(self._texts[i])]
            if fitting:
                return max(fitting, key=lambda i: len(self._texts[i]))
        ranks = (self._in_json if in_json else self._elsewhere)[allowed]
        best = allowed[ranks == ranks.min()]
        # Neighbours in turn would go round in a pattern for ever.
        return int(best[np.random.default_rng(salt).integers(len(best))])


def _rank_in_json(text: bytes) -> int:
    if text in _BY_TEXT:
        return _BY_TEXT[text]
    if not text.strip():
        return _SPACE
    return _PLAIN if len(text) == 1 else _LONG


def made_up_embeddings(launch: ComputeLaunch, spec: ModelSpec) -> dict[int, bytes]:
    """Noise that depends on the prompt only, of embeddings and of scores."""
    if isinstance(launch, DecodeStep) or (isinstance(launch, PrefillSlice) and launch.last_layer < spec.num_layers):
        return {}
    made: dict[int, bytes] = {}
    for place, chunk in enumerate(launch.chunks):
        if chunk.embedded_token is not None:
            noise = np.random.default_rng(chunk.sequence.request.prompt_token_ids)
            size = len(chunk.sequence.request.scored_tokens) or spec.hidden_size
            made[place] = noise.standard_normal(size, dtype=np.float32).astype("<f4").tobytes()
    return made
