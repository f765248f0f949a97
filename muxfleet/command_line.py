"""The programs `muxfleet` and `muxfleet-haproxy`."""

import sys

from muxfleet.lean_serve import leave_pandas_out
from muxfleet.own_packages import claim

_INTERRUPTED = 130


def main() -> None:
    try:
        claim()
        leave_pandas_out()
        from deploy.compilation.compiled_finder import prefer_compiled_modules

        prefer_compiled_modules()
        from deploy.cli import main as run

        run()
    except KeyboardInterrupt:  # while all that was imported
        sys.exit(_INTERRUPTED)


def haproxy() -> None:
    claim()
    from deploy.local.haproxy import main as run

    run()


if __name__ == "__main__":
    main()
