"""Decides whether a plan helps one model of many: what the fleet's average hides."""

from placement.estimation.throughput import Floats

_SAME = 0.005  # of a model's demand


def lifts_a_model(before: Floats, after: Floats, least: float) -> bool:
    """Shares of each model's demand that two plans serve. Some model gains at least `least`, and whoever loses is still
    better off than that model was: two models cannot take a place from each other in turn.
    """
    gain = after - before
    lifted, dropped = gain >= least, gain < -_SAME
    if not lifted.any():
        return False
    return not dropped.any() or bool(after[dropped].min() > before[lifted].min())
