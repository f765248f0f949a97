"""Looks at models one by one, which starve and which a plan helps: in the sum of all requests one of a hundred hardly
shows.
"""

import numpy as np

from placement.estimation.throughput import Floats

FLOOR = 0.5  # of a model's demand: who is served less starves
_EACH = 0.01  # of all requests: what feeding one model that is not served at all up to its floor may cost


def starved(served_shares: Floats) -> float:
    """Returns what the models that starve count, as a share of all requests. `served_shares` are of the models that are
    asked for.

    A model without any of its demand counts as much as one of a hundred alike, in larger fleets as one among all, and
    nearer to its floor in proportion: the floors of a whole fleet count no more than its requests.

    >>> float(starved(np.array([1.0, 0.0, 0.25, 0.5])))
    0.015
    """
    if len(served_shares) == 0:
        return 0.0
    missing = np.maximum(0.0, 1.0 - served_shares / FLOOR)
    return min(_EACH, 1.0 / len(served_shares)) * float(missing.sum())


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
