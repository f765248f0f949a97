"""How `make test` spreads tests over processes."""

from xdist.scheduler import LoadFileScheduling

# Beginnings of ids of tests that start fleets: one at a time, for `serve deploy` looks for a Ray of the machine.
FLEETS = ("tests/chaos/", "tests/clients/", "tests/e2e/", "tests/pdmux_actor/serving/test_actor.py")


# Files that look at the same syntax trees.
RULES = ("tests/test_log_calls.py", "tests/test_project_rules.py", "tests/test_registers.py", "tests/test_words.py")


def starts_fleets(nodeid: str) -> bool:
    return nodeid.startswith(FLEETS)


class FleetsBesideFiles(LoadFileScheduling):
    """A file's tests stay in one process, which shares their fixtures. So do those of files that share some, and all
    that start fleets: one mostly waits, while another process computes.
    """

    def _split_scope(self, nodeid: str) -> str:
        if starts_fleets(nodeid):
            return "fleets"
        return "rules" if nodeid.startswith(RULES) else super()._split_scope(nodeid)
