"""How `make test` spreads tests over processes."""

from xdist.scheduler import LoadFileScheduling

# Beginnings of test ids -> what keeps them in one process, in turn.
FLEETS = {
    "tests/chaos/": "faults",
    "tests/e2e/": "whole fleets",
    "tests/pdmux_actor/serving/test_actor.py": "whole fleets",
}


def fleets_of(nodeid: str) -> str | None:
    """Which fleets a test belongs to; None: it starts none."""
    return next((fleets for beginning, fleets in FLEETS.items() if nodeid.startswith(beginning)), None)


class FleetsBesideFiles(LoadFileScheduling):
    """A file's tests stay in one process, which shares their fixtures. So do those of a folder that starts fleets: a
    fleet mostly waits, while other processes compute.
    """

    def _split_scope(self, nodeid: str) -> str:
        return fleets_of(nodeid) or super()._split_scope(nodeid)
