"""How much a search for goodput runs."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is run. `window_s` is how long requests arrive in one run."""

    layers: int
    window_s: float
    least_requests: int
    most_runs: int
    resolution: float
    repeats: int
    retries: int
    retries_when_quiet: bool = False
    limit_s: float = math.inf  # per workload and target


FULL = Effort(layers=16, window_s=20.0, least_requests=24, most_runs=10, resolution=0.08, repeats=3, retries=2)
QUICK = Effort(layers=16, window_s=8.0, least_requests=16, most_runs=6, resolution=0.2, repeats=1, retries=1)
# For a run of so many minutes; guesses make the searches short.
TIMED = Effort(
    layers=16,
    window_s=12.0,
    least_requests=16,
    most_runs=6,
    resolution=0.14,
    repeats=3,
    retries=1,
    retries_when_quiet=True,
)
