"""What fleets of the closed-loop benchmark are asked: popularity flips, one model bursts, demand shifts as in a day."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from fleets.byte_checkpoint import write_checkpoint

from deploy.local.demo_fleet import write_demo
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES
from traces.record import TraceRecord
from traces.synthetic import power_law_popularity
from traces.timeliness import SloTarget

HOLD_S = 60.0
_LAYERS_7B = (32, 4096, 11008, 32, 8, 128)
_LAYERS_13B = (40, 5120, 13824, 40, 8, 128)
_BURST = 13.0
_SLOW_UNITS: Mapping[float, str] = MappingProxyType({12.0: "a40/7", 14.0: "a40/4"})  # by requests per second
_WAVES = 8  # steps of a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A fleet and what it is asked. `prompt_tokens`, `output_tokens`: means of lognormal and geometric lengths. Units
    take `slowdowns` times what their device's figures say; where there are any, demand is as planned all the time. With
    `hot_per_s` all models are asked alike at first, and then the last one so much. `shapes` are the models', by turns.
    """

    name: str
    models: tuple[str, ...]
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int
    slo: SloTarget
    phase_s: float
    most_replicas: int = 4
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    hot_per_s: float | None = None
    units: int = 8
    unit_memory: str | None = None
    shapes: tuple[Sequence[int], ...] = (_LAYERS_7B, _LAYERS_7B, _LAYERS_13B)
    seed: int = 7

    @property
    def is_on_cpu(self) -> bool:
        return self.models[0] in DEMO_SHAPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings of `placement`, and the KV pools that somebody guessed. `knows_future`: at the start of each phase the
    plan for it is in place, without a load.
    """

    replan: str
    learn: bool = True
    kv_memory: str = "8GiB"
    knows_future: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Rates per model and second, over `span_s` from `start_s`."""

    name: str
    start_s: float
    span_s: float
    rates: Mapping[str, float]


def simulated(*, phase_s: float) -> Setting:
    return Setting(
        name="8 simulated A40, 12 models",
        models=tuple(f"m{i:02d}" for i in range(12)),
        rate_per_s=5.0,
        prompt_tokens=2600,
        output_tokens=16,
        slo=SloTarget(ttft_s=4.0, tbt_s=0.5),
        phase_s=phase_s,
    )


def with_slow_unit(*, phase_s: float, rate_per_s: float) -> Setting:
    """The same fleet near what it can do; the unit whose models are at home nowhere else takes 30 % longer than its
    table says.
    """
    return replace(
        simulated(phase_s=phase_s),
        name=f"8 simulated A40, one slow, {rate_per_s:g}/s",
        rate_per_s=rate_per_s,
        slo=SloTarget(ttft_s=12.0, tbt_s=0.5),
        most_replicas=2,
        slowdowns={_SLOW_UNITS[rate_per_s]: 1.3},
    )


def with_slow_home(*, phase_s: float, rate_per_s: float) -> Setting:
    """One home for every model; one of the units takes 30 % longer than its table says, and no routing avoids it."""
    return replace(
        simulated(phase_s=phase_s),
        name=f"8 simulated A40, one slow, one home for each model, {rate_per_s:g}/s",
        rate_per_s=rate_per_s,
        most_replicas=1,
        slowdowns={"a40/7": 1.3},
    )


def with_starved_model(*, phase_s: float, hot_per_s: float) -> Setting:
    """A hundred models, each on a GPU that holds one, and two to spare: one comes to be asked for more than its homes
    can do, which is little of what the whole fleet is asked for.
    """
    return Setting(
        name=f"102 simulated A40, one of 100 models at {hot_per_s:g}/s",
        models=tuple(f"m{i:03d}" for i in range(100)),
        rate_per_s=400.0,
        prompt_tokens=700,
        output_tokens=16,
        slo=SloTarget(ttft_s=2.0, tbt_s=0.5),
        phase_s=phase_s,
        hot_per_s=hot_per_s,
        units=102,
        unit_memory="30GiB",
        shapes=(_LAYERS_7B,),
    )


def on_cpu(*, phase_s: float) -> Setting:
    return Setting(
        name="2 CPU units, 3 models",
        models=tuple(DEMO_SHAPES),
        rate_per_s=4.0,
        prompt_tokens=120,
        output_tokens=12,
        slo=SloTarget(ttft_s=1.0, tbt_s=0.3),
        phase_s=phase_s,
    )


def phases(setting: Setting) -> list[Phase]:
    """The plan that a fleet starts with fits the first."""
    if setting.slowdowns:
        rates = {m: s * setting.rate_per_s for m, s in power_law_popularity(setting.models, 0.5).items()}
        return [
            Phase(name="first minute", start_s=0.0, span_s=60.0, rates=rates),
            Phase(name="afterwards", start_s=60.0, span_s=1.5 * setting.phase_s, rates=rates),
        ]
    if setting.hot_per_s is not None:
        alike = dict.fromkeys(setting.models, setting.rate_per_s / len(setting.models))
        hot, half_s = {setting.models[-1]: setting.hot_per_s}, setting.phase_s / 2
        return [
            Phase(name="as planned", start_s=0.0, span_s=half_s, rates=alike),
            Phase(name="one starves", start_s=half_s, span_s=1.5 * setting.phase_s, rates=alike | hot),
        ]
    popular = {m: s * setting.rate_per_s for m, s in power_law_popularity(setting.models, 1.2).items()}
    flipped = dict(zip(setting.models, reversed(popular.values()), strict=True))
    calm = {m: 0.5 * r for m, r in popular.items()}
    bursting = setting.models[-1]
    found = [
        Phase(name="as planned", start_s=0.0, span_s=setting.phase_s / 2, rates=popular),
        Phase(name="flip", start_s=0.0, span_s=setting.phase_s, rates=flipped),
        Phase(name="calm", start_s=0.0, span_s=setting.phase_s / 4, rates=calm),
        Phase(name="burst", start_s=0.0, span_s=setting.phase_s, rates=calm | {bursting: _BURST * calm[bursting]}),
        *_day(setting),
    ]
    start_s = 0.0
    placed = []
    for phase in found:
        placed.append(Phase(name=phase.name, start_s=start_s, span_s=phase.span_s, rates=phase.rates))
        start_s += phase.span_s
    return placed


def _day(setting: Setting) -> Iterator[Phase]:
    """One half of the models wakes as the other goes to sleep, by a cosine."""
    half = len(setting.models) // 2
    for step in range(_WAVES):
        awake = 0.5 + 0.45 * np.cos(2 * np.pi * step / _WAVES)
        rates = {
            m: setting.rate_per_s * (awake / half if i < half else (1 - awake) / (len(setting.models) - half))
            for i, m in enumerate(setting.models)
        }
        yield Phase(name="day", start_s=0.0, span_s=setting.phase_s / _WAVES, rates=rates)


def requests(setting: Setting) -> list[TraceRecord]:
    draw = np.random.default_rng(setting.seed)
    longest = 3 * setting.prompt_tokens
    records = []
    for phase in phases(setting):
        for model, rate_per_s in phase.rates.items():
            count = draw.poisson(rate_per_s * phase.span_s)
            times = phase.start_s + draw.random(count) * phase.span_s
            prompts = np.clip(draw.lognormal(np.log(setting.prompt_tokens) - 0.18, 0.6, count), 8, longest)
            outputs = np.clip(draw.geometric(1 / setting.output_tokens, count), 2, 8 * setting.output_tokens)
            records += [
                TraceRecord(arrival_s=float(t), input_tokens=int(i), output_tokens=int(o), model=model)
                for t, i, o in zip(times, prompts, outputs, strict=True)
            ]
    return sorted(records, key=lambda r: r.arrival_s)


def write_fleet(folder: Path, setting: Setting, variant: Variant, phase: Phase | None = None) -> Path:
    """The fleet file; its plan fits the phase, by default the first."""
    if setting.is_on_cpu:
        write_demo(folder)
    else:
        for i, model in enumerate(setting.models):
            write_checkpoint(folder / "checkpoints" / model, setting.shapes[i % len(setting.shapes)])
    first = (phase or phases(setting)[0]).rates
    fleet: dict[str, Any] = {
        "name": f"closed-loop-{variant.replan}",
        "models": [
            {
                "id": model,
                "source": f"./checkpoints/{model}",
                "slo": {"ttft_s": setting.slo.ttft_s, "tbt_s": setting.slo.tbt_s},
                "demand": {
                    "rate_per_s": round(first[model], 3),
                    "prompt_tokens": setting.prompt_tokens,
                    "output_tokens": setting.output_tokens,
                },
                "replicas": {"min": 1, "max": 2 if setting.is_on_cpu else setting.most_replicas},
            }
            for model in setting.models
        ],
        "pools": [_pool(setting, variant)],
        "placement": {
            "solver": "search",
            "replan": variant.replan,
            "replan_every_s": 10.0 if setting.slowdowns else 3.0,
            "learn": variant.learn,
            "min_residency_s": 10.0,
            "max_moves_per_min": 30,
        },
        "gateway": {"port": 20321, "replicas": 2, "hold_s": HOLD_S},
    }
    file = folder / "fleet.json"
    file.write_text(json.dumps(fleet))
    return file


def _pool(setting: Setting, variant: Variant) -> dict[str, Any]:
    if setting.is_on_cpu:
        # Each unit holds two of the three models (15, 25 and 37 MiB), so that one model has a second replica.
        memory = {"kv_memory": "64MiB", "device_memory": "130MiB"}
        return {"name": "cpu", "device": "cpu", "cores": 1, "nodes": {"min": 2}, **memory}
    shape = {"device": "simulated", "gpu_type": "A40", "gpus_per_node": setting.units}
    memory = {} if setting.unit_memory is None else {"device_memory": setting.unit_memory}
    return {"name": "a40", **shape, **memory, "kv_memory": variant.kv_memory}
