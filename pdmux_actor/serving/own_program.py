"""Works out how a process of ours starts another: it finds our packages where this one did, and nowhere else."""

import sys
from pathlib import Path

# Where this package and those it imports lie. The program finds them there and nowhere else: neither the folder that a
# worker happens to run in nor another distribution's package of the same name comes first.
_PACKAGES_FOLDER = Path(__file__).resolve().parents[2]
_RUN_PROGRAM = (
    "import runpy, sys; folder, program = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, folder); "
    "runpy.run_module(program, run_name='__main__', alter_sys=True)"
)


def own_program(program: str) -> tuple[str, ...]:
    """The beginning of a command line that runs the module `program`; its arguments follow."""
    return (sys.executable, "-P", "-c", _RUN_PROGRAM, str(_PACKAGES_FOLDER), program)
