"""Errors of placement.

PlacementError
├── FleetTooLarge   more plans to look at than a solver is made for
└── ModelUnknown    a question about a model that the fleet does not have
"""

from difflib import get_close_matches


class PlacementError(Exception):
    """Base of this package's errors."""


class FleetTooLarge(PlacementError):
    def __init__(self, *, solver: str, limit: int) -> None:
        looked_at = f"more plans than the {limit} that it looks at in its time"
        super().__init__(f"solver {solver!r}: this fleet has {looked_at}; use solver 'search'")
        self.solver = solver
        self.limit = limit


class ModelUnknown(PlacementError):
    def __init__(self, *, model: str, known: tuple[str, ...]) -> None:
        near = get_close_matches(model, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"the fleet has no model {model!r}: {hint}it has {', '.join(known)}")
        self.model = model
        self.known = known
