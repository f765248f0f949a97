"""The command line."""

import sys
from collections.abc import Sequence

import typer

from deploy.errors import DeployError
from pdmux_actor.errors import EngineError
from placement.errors import PlacementError
from profiler.errors import ProfilerError
from traces.errors import TraceError

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process: 0 on success, 1 when the work failed, 2 when the input is not usable, 130 on Ctrl-C."""
    try:
        build_app()(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="muxfleet")
    except DeployError as error:
        _fail(error, error.exit_code)
    except (PlacementError, ProfilerError, TraceError) as error:
        _fail(error, 2)
    except EngineError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)


def build_app() -> typer.Typer:
    # These take a second to import: Ctrl-C meanwhile must end in one line, as it does later.
    from deploy.commands.apply import apply
    from deploy.commands.bench import bench
    from deploy.commands.compare import compare
    from deploy.commands.demo import demo
    from deploy.commands.explain import explain
    from deploy.commands.keys import keys
    from deploy.commands.plan import plan
    from deploy.commands.profile import profile
    from deploy.commands.render import render, schema
    from deploy.commands.simulate import simulate
    from deploy.commands.status import status
    from deploy.commands.top import top
    from deploy.commands.trace_decisions import trace_decisions
    from deploy.commands.traces import traces
    from deploy.commands.up import up
    from deploy.commands.verb import Verb
    from deploy.commands.version import options

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (
        demo,
        up,
        apply,
        plan,
        explain,
        render,
        schema,
        profile,
        bench,
        simulate,
        compare,
        status,
        top,
        trace_decisions,
    ):
        app.command(cls=Verb)(command)
    app.callback()(options)
    app.add_typer(traces, name="traces")
    app.add_typer(keys, name="keys")
    return app


def _fail(reason: object, exit_code: int) -> None:
    typer.echo(f"muxfleet: {reason}", err=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
