"""muxfleet profile"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.commands.gateway_url import known_url
from deploy.commands.json_file import writable, write_json
from deploy.commands.profile_run import profile_of_run
from deploy.commands.terminal import terminal
from deploy.commands.told_progress import ToldProgress
from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import check_sources, read_fleet_file
from deploy.fleet_file.source_paths import resolve_source
from deploy.profiling.saved_profile import save_profile
from pdmux_actor.backends.registry import BACKENDS, NAMED
from profiler.profile import PHASES, HeldOutError, Profile

if TYPE_CHECKING:
    from deploy.profiling.profiled_engines import EngineToProfile

_MIB = 1024**2

Imported = Annotated[
    str | None,
    typer.Option(
        "--import",
        metavar="SOURCE",
        help="Measure nothing: read published tables, aiconfigurator:h200:vllm, of a pool with that GPU.",
    ),
]
Tables = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="With --import: of the package aiconfigurator_core. Default: installed."),
]
FromRun = Annotated[
    str | None,
    typer.Option(
        "--from-run",
        metavar="URL",
        help="Fit rates and host time to a short run of an OpenAI-compatible endpoint; host:port will do.",
        callback=known_url,
    ),
]
Model = Annotated[str | None, typer.Option(help="With --from-run: a model of the fleet. Default: its only one.")]
ApiKey = Annotated[str | None, typer.Option(help="With --from-run. Default: MUXFLEET_API_KEY.")]
Fleet = Annotated[Path | None, typer.Argument(metavar="[FLEET]", help="Fleet file; its first cpu or cuda pool.")]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="SOURCE", help="A folder or Hugging Face id instead of a fleet.")
]
Out = Annotated[Path, typer.Option(metavar="PARQUET", help="The profile; goes on where it ends.", callback=writable)]
Budget = Annotated[float, typer.Option(metavar="S", help="Seconds to measure for, all models.", min=1.0, max=1e6)]
Backend = Annotated[
    str | None, typer.Option(help=f"The first pool of the fleet file with that backend: {', '.join(NAMED)}.")
]
Device = Annotated[
    Literal["cpu", "cuda"] | None, typer.Option(help="With --checkpoint: cores, or an NVIDIA GPU. Default: cpu.")
]


def profile(
    file: Fleet = None,
    checkpoint: Checkpoint = None,
    out: Out = Path("profile.parquet"),
    budget: Budget = 150.0,
    pool: Annotated[str | None, typer.Option(help="A pool of the fleet file.")] = None,
    backend: Backend = None,
    device: Device = None,
    cores: Annotated[int | None, typer.Option(help="With --checkpoint. Default: all.", min=1)] = None,
    dtype: Annotated[str | None, typer.Option(help="With --checkpoint. Default: its own.")] = None,
    imported: Imported = None,
    tables: Tables = None,
    from_run: FromRun = None,
    model: Model = None,
    api_key: ApiKey = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the errors as JSON.", callback=writable)
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Predicted against measured, PNG or SVG.")] = None,
) -> None:
    """Measure how long an engine's launches take here, and fit the latency models to it.

    Prints each model's error on launches that were kept from fitting. The profile goes into the fleet file
    (pools[].profile), where policies and simulations use the latency model with the smallest error.

    Example: muxfleet profile examples/demo.yaml --out demo-profile.parquet
    Example: muxfleet profile fleet.yaml --backend sglang --out sglang-profile.parquet
    Example: muxfleet profile --checkpoint ./my-model --device cuda
    Example: muxfleet profile fleet.yaml --import aiconfigurator:h200:vllm --out h200.parquet
    Example: muxfleet profile fleet.yaml --from-run http://10.0.0.7:8000 --model llama --out vllm.parquet
    """
    if checkpoint is not None and pool is not None:
        raise OptionNotUsable(option="--pool", value=pool, remedy="pools are a fleet file's; --checkpoint has none")
    if backend is not None and backend not in NAMED:
        raise OptionNotUsable(option="--backend", value=backend, remedy=BACKENDS.remedy(backend))
    draw = None if plot is None else _plotter(plot)
    console = terminal()
    if from_run is not None:
        _refuse_beside_run(checkpoint or imported or backend or device or cores or dtype or tables)
        measured = profile_of_run(console, from_run, file, pool=pool, model=model, api_key=api_key, budget_s=budget)
        save_profile(measured, out)
    elif (said := model or (api_key and "(not shown)")) is not None:
        raise OptionNotUsable(option="--model, --api-key", value=said, remedy="they go with --from-run")
    elif imported is not None:
        _refuse_beside_import(backend or device or cores)
        measured = _imported(imported, tables, file, checkpoint, pool=pool, dtype=dtype)
        save_profile(measured, out)
    elif tables is not None:
        raise OptionNotUsable(option="--tables", value=tables, remedy="it goes with --import")
    else:
        engine = _engine(file, checkpoint, pool=pool, backend=backend, device=device, cores=cores, dtype=dtype)
        measured = _measure(console, engine, out, budget)
    errors = measured.held_out_errors()
    console.print(_table(errors))
    best, _ = measured.best_latency()
    console.print(f"{out}: {sum(len(m.measurements) for m in measured.models.values())} launches; best: {best}")
    if json_file is not None:
        write_json(json_file, _as_dict(measured, errors, best))
    if draw is not None and plot is not None:
        draw(measured, plot)


def _plotter(plot: Path) -> Callable[[Profile, Path], None]:
    """Raises OptionNotUsable, before anything is measured."""
    try:
        from deploy.profiling.profile_plot import plot_profile  # matplotlib is an extra, and takes a second to import
    except ModuleNotFoundError as error:
        remedy = f"{error.name} is not installed; pip install 'muxfleet[plots]'"
        raise OptionNotUsable(option="--plot", value=plot, remedy=remedy) from error
    return plot_profile


def _engine(
    file: Path | None,
    checkpoint: str | None,
    *,
    pool: str | None,
    backend: str | None,
    device: Literal["cpu", "cuda"] | None,
    cores: int | None,
    dtype: str | None,
) -> "EngineToProfile":
    from deploy.profiling.profile_runs import engine_of_fleet
    from deploy.profiling.profiled_engines import GPU_KV_BYTES, EngineToProfile, ModelToProfile  # brings torch

    if (file is None) == (checkpoint is None):
        given = "nothing" if file is None else "both"
        raise OptionNotUsable(option="FLEET, --checkpoint", value=given, remedy="name a fleet file, or a checkpoint")
    if file is not None:
        if (said := device or cores or dtype) is not None:
            remedy = "the fleet file says that (pools[].device and .cores, models[].dtype)"
            raise OptionNotUsable(option="--device/--cores/--dtype", value=said, remedy=remedy)
        fleet = read_fleet_file(file)
        check_sources(fleet)
        return engine_of_fleet(fleet, pool, backend)
    assert checkpoint is not None
    if backend == "sglang":
        remedy = "SGLang is started as a pool says (gpu_type, mesh_gpus, sglang); name a fleet file, not a checkpoint"
        raise OptionNotUsable(option="--backend", value=backend, remedy=remedy)
    if device == "cuda" and cores is not None:
        raise OptionNotUsable(option="--cores", value=cores, remedy="a GPU is measured whole; leave it out")
    source = resolve_source(checkpoint, Path.cwd())
    return EngineToProfile(
        models=(ModelToProfile(name=Path(source).name, source=source, dtype=dtype),),
        block_bytes=16 * 1024,
        cores=cores,
        device=device or "cpu",
        kv_pool_bytes=GPU_KV_BYTES if device == "cuda" else 256 * _MIB,
        max_batch_tokens=8192 if device == "cuda" else 2048,
        max_sequences=256 if device == "cuda" else 64,
    )


def _refuse_beside_run(said: object) -> None:
    if said is not None:
        remedy = "--from-run takes a fleet file and asks the endpoint; leave them out"
        raise OptionNotUsable(option="--checkpoint/--import/--backend/--device/--dtype", value=said, remedy=remedy)


def _refuse_beside_import(said: str | int | None) -> None:
    if said is not None:
        raise OptionNotUsable(option="--backend/--device/--cores", value=said, remedy="--import measures nothing")


def _imported(
    source: str, tables: Path | None, file: Path | None, checkpoint: str | None, *, pool: str | None, dtype: str | None
) -> Profile:
    from deploy.profiling.imported_profile import ImportedTables, import_profile, models_on  # brings pandas

    asked = ImportedTables.of(source)
    if (file is None) == (checkpoint is None):
        given = "nothing" if file is None else "both"
        raise OptionNotUsable(option="FLEET, --checkpoint", value=given, remedy="name a fleet file, or a checkpoint")
    if file is not None:
        if dtype is not None:
            raise OptionNotUsable(option="--dtype", value=dtype, remedy="the fleet file says that (models[].dtype)")
        specs, num_gpus = models_on(read_fleet_file(file), pool, asked.device)
        return import_profile(asked, tables, specs, num_gpus)
    assert checkpoint is not None
    home = resolve_source(checkpoint, Path.cwd())
    return import_profile(asked, tables, {Path(home).name: read_model_spec(checkpoint, home, None, dtype)}, 1)


def _measure(console: Console, engine: "EngineToProfile", out: Path, budget_s: float) -> Profile:
    from deploy.profiling.profile_runs import ProfilingProgress, profile_engine

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left_out: dict[str, int] = {}
    with ToldProgress(*columns, console=console) as bars:
        tasks = {model.name: bars.add_task(model.name, total=None) for model in engine.models}

        def show(done: ProfilingProgress) -> None:
            left_out[done.model] = done.too_long
            bars.update(tasks[done.model], completed=done.launches + done.too_long, total=done.planned)

        measured = profile_engine(engine, out, budget_s=budget_s, on_progress=show)
    for model, count in left_out.items():
        if count:
            console.print(f"{model}: {count} launches would have taken too long; a larger --budget measures them")
    return measured


def _table(errors: list[HeldOutError]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title="error on held-out launches: mean / 90 %")
    table.add_column("model")
    table.add_column("latency model")
    for phase in PHASES:
        table.add_column(phase, justify="right")
    cells = {(e.model, e.latency, e.phase): f"{e.mean:.1%} / {e.p90:.1%}" for e in errors}
    for model, latency in dict.fromkeys((e.model, e.latency) for e in errors):
        table.add_row(model, latency, *(cells.get((model, latency, phase), "-") for phase in PHASES))
    return table


def _as_dict(measured: Profile, errors: list[HeldOutError], best: str) -> dict[str, object]:
    return {
        "machine": dict(measured.machine),
        "device": measured.device.name,
        "sms": measured.device.num_sms,
        "best": best,
        "launches": {name: len(model.measurements) for name, model in measured.models.items()},
        "errors": [asdict(error) for error in errors],
    }
