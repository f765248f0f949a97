"""A benchmark whose engine runs in its own process has the environment that an engine's process is given."""

import os
import sys

from pdmux_actor.serving.engine_environment import ENGINE_ENVIRONMENT


def in_engine_environment() -> None:
    """Starts this program once more where the environment lacks some of it: libgomp looks only when it is loaded."""
    if not ENGINE_ENVIRONMENT.keys() <= os.environ.keys():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**ENGINE_ENVIRONMENT, **os.environ})
