"""Errors of placement.

PlacementError
└── InvalidPlan   a plan that is malformed or promises more than its units have
"""


class PlacementError(Exception):
    """Base of this package's errors."""


class InvalidPlan(PlacementError):
    def __init__(self, *, problems: tuple[str, ...]) -> None:
        super().__init__(f"not a valid plan: {'; '.join(problems)}; make a new one with a solver")
        self.problems = problems
