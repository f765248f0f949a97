"""A fleet for a benchmark: `muxfleet up` in a process of its own."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))

from fleet_process import START_S, FleetProcess

_LAST_WORDS = 20_000  # characters


@contextmanager
def running_fleet(
    fleet_file: Path,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
    start_s: float = START_S,
    log: Path | None = None,
) -> Iterator[FleetProcess]:
    """As `FleetProcess`, while it serves. SIGTERM to the benchmark ends the fleet, too. `log`: keeps all that it says,
    also where it never serves.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    fleet = FleetProcess(fleet_file, environment, options, prefix, start_s)
    try:
        fleet.wait_until_serving()
        yield fleet
        fleet.stop()
    except BaseException:
        print(fleet.output[-_LAST_WORDS:], file=sys.stderr)
        raise
    finally:
        if log is not None:
            log.write_text(fleet.output, encoding="utf-8")
        fleet.kill()
        signal.signal(signal.SIGTERM, before)
