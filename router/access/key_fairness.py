"""Says how evenly API keys that ask are served."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.access.key_figures import WINDOW_S, KeyFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """Holds what a key got of the tokens of the last minutes; None: it asked for nothing. Keys all weigh the same: see
    KeysReport's `fair_share`.
    """

    figures: KeyFigures
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReport:
    """All keys, by name. Of those that got tokens in the last `window_s`, or wait for some: `fair_share` is one over
    their number, and `jain_index` is of their tokens; None: there are none. `left_out` counts gateways whose figures
    are not in it: they do not answer now, or are of a release that tells other ones.
    """

    window_s: float
    jain_index: float | None
    fair_share: float | None
    keys: tuple[KeyShare, ...]
    left_out: int = 0


def jain_index(amounts: Sequence[float]) -> float | None:
    """Returns (sum x)^2 / (n sum x^2) of n amounts (Jain, Chiu and Hawe 1984): 1 where all get the same, 1/n where one
    gets all; None: nobody gets anything.
    """
    squares = sum(x * x for x in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None


def keys_report(keys: Iterable[KeyFigures], *, left_out: int = 0) -> KeysReport:
    """`keys`: of all gateways but so many."""
    known = tuple(keys)
    asking = [k for k in known if _asks(k)]
    total = sum(k.recent_tokens for k in asking)
    return KeysReport(
        window_s=WINDOW_S,
        jain_index=jain_index([k.recent_tokens for k in asking]),
        fair_share=1 / len(asking) if asking else None,
        keys=tuple(KeyShare(figures=k, share=k.recent_tokens / total if total and _asks(k) else None) for k in known),
        left_out=left_out,
    )


def _asks(key: KeyFigures) -> bool:
    return key.recent_tokens > 0 or key.waiting_tokens > 0
