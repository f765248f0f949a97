"""The command line."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from deploy.commands.verbs import Verbs
from deploy.errors import DeployError
from pdmux_actor.errors import EngineError
from placement.errors import PlacementError
from profiler.errors import ProfilerError
from traces.errors import TraceError

_INTERRUPTED = 130
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0 on success, 1 when the work failed, 2 when the input is not usable, 130 on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names, bars and arrows, in a terminal of ASCII or Latin-1, too
            stream.reconfigure(errors="replace")
    try:
        try:
            build_app()(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="muxfleet")
        finally:
            if sys.stdout is not None:  # as where the shell has closed it
                sys.stdout.flush()
    except DeployError as error:
        _fail(error, error.exit_code)
    except (PlacementError, ProfilerError, TraceError) as error:
        _fail(error, 2)
    except EngineError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again when it ends
        _fail(f"its output cannot be written: {error.strerror}; make room there, or write it elsewhere", 1)


def build_app() -> typer.Typer:
    app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(options)
    return app


def _fail(reason: object, exit_code: int) -> None:
    typer.echo(f"muxfleet: {reason}", err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"muxfleet {version('muxfleet')}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Many LLMs on few GPUs behind one OpenAI-compatible endpoint."""
