"""How `make test` spreads tests over processes."""

from xdist.scheduler import LoadFileScheduling

FLEETS = ("tests/chaos/", "tests/e2e/", "tests/pdmux_actor/serving/test_actor.py")


class FleetsInTurn(LoadFileScheduling):
    """A file's tests stay in one process, which shares their fixtures. All that start Ray stay in one, in turn: a fleet
    mostly waits, while the other process computes, but two fleets would take each other's time and ports.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "fleets" if nodeid.startswith(FLEETS) else super()._split_scope(nodeid)
