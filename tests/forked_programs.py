"""Runs programs in processes of their own that begin with what all of them import: it is read once, each is a fork.

Run as a program, it is the process that they are forked from; its argument is what that imports.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile


class ForkedPrograms:
    def __init__(self, origin: "subprocess.Popen[str]") -> None:
        self._origin = origin

    def run(self, program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Returns what it wrote to its standard output. Its environment is this process's where none is given."""
        asked = (program, arguments, dict(os.environ if environment is None else environment))
        self._origin.stdin.write(json.dumps(asked) + "\n")
        self._origin.stdin.flush()
        status, out, errors = json.loads(self._origin.stdout.readline())
        assert status == 0, errors
        return out


@contextmanager
def forked_programs(imports: str) -> Iterator[ForkedPrograms]:
    """`imports` may start no thread, which forks would lack, and read nothing of what is told to programs."""
    command = [sys.executable, __file__, imports]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as origin:
        try:
            yield ForkedPrograms(origin)
        finally:
            origin.stdin.close()


def _ended(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            for place, file in enumerate((out, errors), start=1):
                os.dup2(file.fileno(), place)
            os._exit(_run(program, arguments, environment))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, errors):
            file.seek(0)
        return status, out.read(), errors.read()


def _run(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    try:
        exec(program, {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    exec(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(_ended(*json.loads(line))), flush=True)
