"""Says in words how far measured steps are from what plans would expect without them."""

from placement.step_correction import StepCorrection


def pace_in_words(correction: StepCorrection) -> str | None:
    """None where nothing is corrected.

    >>> pace_in_words(StepCorrection(prefill=1.3, decode=1.3))
    'runs 30 % slower than its model'
    >>> pace_in_words(StepCorrection(prefill=0.9, contention=1.25))
    'runs prefills 10 % faster than its model; decode beside prefills takes 25 % longer'
    >>> pace_in_words(StepCorrection()) is None
    True
    """
    prefill, decode = (_words(factor) for factor in (correction.prefill, correction.decode))
    if prefill == decode:
        parts = [f"runs {prefill} than its model"] if prefill is not None else []
    else:
        named = [f"{what} {words}" for what, words in (("prefills", prefill), ("decode steps", decode)) if words]
        parts = [f"runs {' and '.join(named)} than its model"]
    if (beside := _percent(correction.contention)) != 0:
        parts.append(f"decode beside prefills takes {abs(beside)} % {'longer' if beside > 0 else 'less'}")
    return "; ".join(parts) or None


def _words(factor: float) -> str | None:
    percent = _percent(factor)
    return None if percent == 0 else f"{abs(percent)} % {'slower' if percent > 0 else 'faster'}"


def _percent(factor: float) -> int:
    return round(100 * (factor - 1))
