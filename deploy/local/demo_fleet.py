"""The demo: three small models of different shapes on one CPU unit, and the trace that is replayed against them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from deploy.errors import OutputNotWritable
from deploy.local.demo_weights import DemoWeights
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from traces.machine_fit import MachineLimits, Scale, scale_to
from traces.readers.registry import read_trace
from traces.record import TraceRecord
from traces.synthetic import PROFILES, power_law_popularity, synthesize
from traces.trace import Trace
from traces.transforms import assign_models

FLEET_FILE_NAME = "demo.yaml"
CHECKPOINT_SEED = 20260501
_POPULARITY_ALPHA = 0.9  # MuxServe's middle setting: 20 % of its models get about half of the requests
_PROFILE = PROFILES["azure_conv"]
_RATE_PER_S = 5.53  # mean rate of the Azure conversation trace
# What two shared cores sustain with room to spare: the random models, and a trained one of 135 M parameters.
RANDOM_LIMITS = MachineLimits(
    max_input_tokens=512,
    max_output_tokens=48,
    input_tokens_per_s=1000.0,
    output_tokens_per_s=120.0,
    max_duration_s=25.0,
)

TRAINED_LIMITS = MachineLimits(
    max_input_tokens=192,
    max_output_tokens=32,
    input_tokens_per_s=80.0,
    output_tokens_per_s=20.0,
    max_duration_s=45.0,
)

FLEET_TEXT = """\
# yaml-language-server: $schema=./fleet.schema.json
# Three small models that share one CPU unit. `muxfleet demo --write examples` writes examples/demo.yaml and the
# checkpoints that it names.
name: demo
models:
  - id: demo-llama
    source: ./checkpoints/demo-llama
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 2.0, prompt_tokens: 128, output_tokens: 16}
  - id: demo-qwen2
    source: ./checkpoints/demo-qwen2
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 1.0, prompt_tokens: 128, output_tokens: 16}
  - id: demo-qwen3
    source: ./checkpoints/demo-qwen3
    slo: {ttft_s: 1.0, tbt_s: 0.2}
    demand: {rate_per_s: 0.7, prompt_tokens: 128, output_tokens: 16}
pools:
  - name: laptop
    device: cpu
    kv_memory: 256MiB
engine:
  policy: mux
gateway:
  port: 8000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTrace:
    """`origin` says in words where it comes from, `scale` how it was made to fit this machine."""

    trace: Trace
    origin: str
    scale: Scale


def write_demo(folder: Path, weights: DemoWeights | None = None) -> Path:
    """Writes the checkpoints and the fleet file; returns the fleet file.

    With `weights` two of the models are links to them, else all three are random. Raises OutputNotWritable.
    """
    fleet_file = folder / FLEET_FILE_NAME
    trained = {} if weights is None else {"demo-llama": weights.llama, "demo-qwen2": weights.qwen2}
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name, shape in DEMO_SHAPES.items():
            checkpoint = folder / "checkpoints" / name
            _remove(checkpoint)
            if name in trained:
                checkpoint.symlink_to(trained[name], target_is_directory=True)
            else:
                write_random_checkpoint(checkpoint, shape, CHECKPOINT_SEED)
        fleet_file.write_text(FLEET_TEXT, encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(path=str(folder), reason=error.strerror or str(error)) from error
    except SafetensorError as error:  # what the library makes of a full disk
        raise OutputNotWritable(path=str(folder), reason=str(error)) from error
    return fleet_file


def _remove(checkpoint: Path) -> None:
    """What was written before: of a link, not what it leads to."""
    if checkpoint.is_symlink():
        checkpoint.unlink()
    elif checkpoint.exists():
        shutil.rmtree(checkpoint)


def generated_trace(*, requests: int, seed: int, limits: MachineLimits = RANDOM_LIMITS) -> DemoTrace:
    popularity = power_law_popularity(list(DEMO_SHAPES), _POPULARITY_ALPHA)
    trace = synthesize(
        popularity=popularity, rate_per_s=_RATE_PER_S, count=requests, lengths=_PROFILE, seed=seed, name="demo"
    )
    origin = (
        f"generated: Poisson arrivals at {_RATE_PER_S}/s, power-law popularity (alpha {_POPULARITY_ALPHA}), "
        f"lengths of the {_PROFILE.source}"
    )
    return _fitted(trace, origin, limits)


def warm_up_trace(*, per_model: int) -> Trace:
    """One token of each model for every gateway replica, several times over: a gateway loads a tokenizer when it is
    first asked, and that would be measured otherwise.
    """
    records = [
        TraceRecord(arrival_s=0.0, input_tokens=8, output_tokens=1, model=model)
        for _ in range(per_model)
        for model in DEMO_SHAPES
    ]
    return Trace(name="warm-up", records=tuple(records))


def recorded_trace(path: Path, *, requests: int, seed: int, limits: MachineLimits = RANDOM_LIMITS) -> DemoTrace:
    """The first `requests` of a trace file; requests without a model, or of models not here, are drawn by popularity.

    Raises a TraceError: the file is not usable.
    """
    trace = read_trace(path, limit=requests)
    popularity = power_law_popularity(list(DEMO_SHAPES), _POPULARITY_ALPHA)
    is_ours = all(r.model in popularity for r in trace.records)
    trace = assign_models(trace, popularity, seed=seed, overwrite=not is_ours)
    return _fitted(trace, f"first {len(trace.records)} requests of {path.name}", limits)


def _fitted(trace: Trace, origin: str, limits: MachineLimits) -> DemoTrace:
    fitted, scale = scale_to(trace, limits)
    return DemoTrace(trace=fitted, origin=origin, scale=scale)
