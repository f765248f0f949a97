"""A fleet for a benchmark: `muxfleet up` in a process of its own."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))

from fleet_process import FleetProcess

_LAST_WORDS = 20_000  # characters


@contextmanager
def running_fleet(
    fleet_file: Path,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> Iterator[FleetProcess]:
    """As `FleetProcess`, while it serves. SIGTERM to the benchmark ends the fleet, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    fleet = FleetProcess(fleet_file, environment, options, prefix)
    try:
        fleet.wait_until_serving()
        yield fleet
        fleet.stop()
    except BaseException:
        print(fleet.output[-_LAST_WORDS:], file=sys.stderr)
        raise
    finally:
        fleet.kill()
        signal.signal(signal.SIGTERM, before)
