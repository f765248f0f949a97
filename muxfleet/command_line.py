"""The programs `muxfleet` and `muxfleet-haproxy`."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from muxfleet.lean_serve import leave_pandas_out
from muxfleet.own_packages import claim, packages_folder

_INTERRUPTED = 130
_SIMULATIONS = (["simulate"], ["compare"])  # run what was compiled without being asked to


def main() -> None:
    try:
        claim()
        leave_pandas_out()
        from deploy.compilation.compiled_modules import prefer_compiled_modules

        prefer_compiled_modules(by_default=sys.argv[1:2] in _SIMULATIONS)
        from deploy.cli import main as run

        run()
    except KeyboardInterrupt:  # while all that was imported
        sys.exit(_INTERRUPTED)
    except ImportError as error:
        if error.path is None or any(Path(error.path).is_relative_to(own) for own in (sys.prefix, packages_folder())):
            raise
        sys.exit(f"muxfleet: {error}: muxfleet was not installed with that package; is it on PYTHONPATH?")
    except SystemExit as ended:
        if "ray" in sys.modules and isinstance(ended.code, int | None):
            _leave(ended.code or 0)
        raise


def _leave(code: int) -> None:
    """Ends the process where Python would take itself apart: threads of Ray's core that has lost its cluster, or was
    interrupted as it started, crash in that, and the shell hears of the crash.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as Python: who works on is waited for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def haproxy() -> None:
    claim()
    from deploy.local.haproxy import main as run

    run()


if __name__ == "__main__":
    main()
