"""A misspelt parameter is answered with the one that was meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Text to put behind a refusal; empty where nothing comes near.

    >>> did_you_mean("temprature", ["temperature", "top_p"]), did_you_mean("zzz", ["top_p"])
    ('; did you mean temperature?', '')
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""
