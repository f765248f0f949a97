"""Works out how routing by predicted latency shares a model's load among its replicas: more goes where there is more
headroom.
"""

import numpy as np

from placement.estimation.throughput import Floats

# Beyond some headroom more of it attracts no more load: otherwise idle units would take all.
_LEAST, _MOST = 1e-3, 3.0
_STEEPNESS = 0.7


def pull_of(rates_per_s: Floats, headroom: Floats) -> Floats:
    """Returns what replicas attract, in proportion, that have this load on units with this headroom; it settles in
    rounds.
    """
    pull: Floats = rates_per_s * np.clip(headroom, _LEAST, _MOST) ** _STEEPNESS
    return pull
