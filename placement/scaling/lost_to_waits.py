"""Predicts which share of requests waits too long for its first token, where several units serve a model."""

import math

_SMALL = 1e-9
_MOST_EXPONENT = 600.0


def lost_to_waits(busy: float, pulls_per_s: float, slack_s: float, units: float) -> float:
    """Returns the share of requests that cannot start within `slack_s`, which are given up or served late and behind.

    `busy` is the mean load of the units, `pulls_per_s` the sum of 2 / work_s over them. Routing by the predicted first
    token makes one queue of theirs: a wait is longer than t with the chance

        X(t) = C exp(-pulls (1 - busy) t)    C = busy^(sqrt(2 (units + 1)) - 1)

    (Sakasegawa's chance to wait, and the exponential tail of GI/G/m). Whoever cannot be in time leaves room to the
    rest, so that fewer are lost than would wait: (1 - busy) X / (1 - busy X) (Boots and Tijms 1999), which goes over
    into 1 - 1/busy of what is too much.
    """
    if busy <= _SMALL:
        return 0.0
    if slack_s <= 0:
        return 1.0
    idle = 1.0 - busy
    if abs(idle) < 1e-6:
        idle = 1e-6  # the formula is 0/0 there, and as smooth as elsewhere
        busy = 1.0 - idle
    exponent = -pulls_per_s * idle * slack_s
    if exponent > _MOST_EXPONENT:
        return 1.0 - 1.0 / busy
    waits = math.pow(busy, math.sqrt(2.0 * (units + 1.0)) - 1.0) * math.exp(exponent)
    return min(1.0, max(0.0, idle * waits / (1.0 - busy * waits)))
