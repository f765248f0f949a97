"""Rates of requests that a load is tried at, as the command line names them."""

from collections.abc import Sequence

LOADS = ("chat", "mix", "models")


def given_rates(words: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Reads words such as chat=1,2. Raises SystemExit that says what is wrong."""
    rates = {}
    for word in words:
        kind, _, numbers = word.partition("=")
        try:
            of_kind = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            of_kind = ()
        if kind not in LOADS or not of_kind or not min(of_kind) > 0:
            raise SystemExit(f"--rates {word}: give one of {', '.join(LOADS)} and its requests/s, like mix=0.4,0.8")
        rates[kind] = of_kind
    return rates
