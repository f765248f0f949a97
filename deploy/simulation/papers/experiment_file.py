"""Experiment files: a figure of a paper as fleets, workloads, systems, and what was published."""

import json
import math
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic import ValidationError as PydanticValidationError

from deploy.errors import FleetFileError
from deploy.fleet_file.fleet_problems import Problem, problems_of
from deploy.fleet_file.section import Section
from deploy.fleet_file.setting_types import AnySolverName, PolicyName, is_known
from deploy.fleet_file.settings import FleetFile, read_text, resolved_fleet, semantic_problems
from deploy.fleet_file.yaml_source import parse_yaml
from deploy.simulation.fleet_modes.registry import FLEET_MODES
from deploy.simulation.fleet_modes.split import NVLINK_BYTES_PER_S, Split, split_remedy

FleetModeName = Annotated[str, AfterValidator(is_known(FLEET_MODES))]


class LengthSection(Section):
    """A log-normal clipped to [min, max]; `mean` is met after clipping."""

    min: PositiveInt = 1
    mean: PositiveFloat
    max: PositiveInt
    sigma: PositiveFloat = 0.8
    """Standard deviation of the logarithm."""


class SessionsSection(Section):
    """Conversations: every turn's prompt is all that came before, and new tokens."""

    mean_turns: PositiveFloat = 3.0
    think_s: PositiveFloat = 30.0
    """Mean time between two turns, at the workload's own rate."""
    first_tokens: LengthSection
    """Prompt of a first turn."""


class OtherRequestsSection(Section):
    """Requests of another kind among those of a workload, without sessions."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Of all requests."""
    prompt_tokens: LengthSection
    output_tokens: LengthSection


class WorkloadSection(Section):
    """Requests with Poisson arrivals."""

    prompt_tokens: LengthSection
    """With sessions: the new tokens of every further turn."""
    output_tokens: LengthSection
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = 0
    """A system prompt before every prompt, the same for all."""
    sessions: SessionsSection | None = None
    others: OtherRequestsSection | None = None
    seconds: NonNegativeFloat = 0.0
    """Requests come for at least so long. A queue that grows takes a while to show."""
    requests: PositiveInt = 400
    """At least so many."""
    quick_seconds: NonNegativeFloat = 0.0
    quick_requests: PositiveInt = 120
    popularity: Mapping[str, NonNegativeFloat] | None = None
    """Share of the requests, by model. Default: by the fleet's demand."""

    def count(self, rate_per_s: float, *, quick: bool) -> int:
        """Returns the number of requests of a run."""
        least, seconds = (self.quick_requests, self.quick_seconds) if quick else (self.requests, self.seconds)
        return max(least, math.ceil(rate_per_s * seconds))


class FleetModeSection(Section):
    """Units of several engines."""

    name: FleetModeName
    prefill: PositiveInt = 1
    """Engines for prefill in each unit, which has as many GPUs as mesh_gpus says, or one an engine where that is 1."""
    decode: PositiveInt = 1
    link_gb_per_s: PositiveFloat = NVLINK_BYTES_PER_S / 1e9
    """Of each engine, 10^9 bytes each way."""
    layerwise: bool = False
    """The KV of a layer is sent while the next ones are computed."""
    stops_decode: bool = False
    """Of loongserve: where no instance is free, prompts stop the requests of one of them instead of emptying it."""

    def split(self) -> Split:
        return Split(
            prefill=self.prefill,
            decode=self.decode,
            link_bytes_per_s=self.link_gb_per_s * 1e9,
            layerwise=self.layerwise,
            stops_decode=self.stops_decode,
        )


class SystemSection(Section):
    name: Annotated[str, Field(min_length=1)]
    policy: PolicyName
    solver: AnySolverName | None = None
    """Default: the fleet's."""
    lays_out: bool = False
    """The solver chooses how many GPUs each unit has."""
    fleet_mode: FleetModeSection | None = None
    """Default: one engine a unit."""
    scheduler: Mapping[str, int | float | bool] = {}
    """Fields of the scheduler's settings that differ."""
    engine_slowdown: PositiveFloat = 1.0
    """Its own engine's launches take so many times as long as is predicted of the GPU."""


Metric = Literal[
    "goodput_per_s",
    "goodput_tokens_per_s",
    "requests_per_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "tbt_mean_s",
    "tbt_p50_s",
    "tpot_mean_s",
    "e2e_mean_s",
    "ttft_p99_s",
    "ttft_per_token_p99_s",
    "tbt_p99_s",
    "slo_share",
    "hot_requests_share",
    "prefill_sms_share",
]
LOWER_IS_BETTER: frozenset[Metric] = frozenset(
    m for m in get_args(Metric) if m.endswith("_s") and not m.endswith("per_s")
)


class NeedSection(Section):
    """Holds what a rate must meet to count as sustained."""

    tbt_p99_s: PositiveFloat | None = None
    ttft_p99_s: PositiveFloat | None = None
    slo_share: Annotated[float, Field(gt=0, le=1)] | None = None


class PublishedSection(Section):
    """`relative`: the paper gives ratios; figures are shown relative to the first system."""

    metric: Metric
    values: Mapping[str, float] = {}
    """By system. Where the paper only bounds a figure, the bound."""
    orders: tuple[tuple[str, str], ...] = ()
    """Pairs of systems, the better one first, where the paper shows an order without numbers."""
    relative: bool = False
    where: str = ""


class CaseSection(Section):
    name: Annotated[str, Field(min_length=1)]
    fleet: FleetFile
    host_s: Annotated[float, Field(ge=0)] | None = None
    """What the engine's host adds to every launch."""
    workload: WorkloadSection
    systems: Annotated[tuple[SystemSection, ...], Field(min_length=1)]
    rates_per_s: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """One rate to measure at; several to find the goodput, from low to high."""
    window_s: PositiveFloat | None = None
    """Stop then, and count what had ended. Default: run to the end."""
    need: NeedSection = NeedSection()
    published: Annotated[tuple[PublishedSection, ...], Field(min_length=1)]

    def weights(self) -> Mapping[str, float]:
        """Returns each model's part of the requests; an adapter's are its base's."""
        bases = {m.id: m.base or m.id for m in self.fleet.models}
        asked = self.workload.popularity or {m.id: m.demand.rate_per_s for m in self.fleet.models}
        found: dict[str, float] = {}
        for model, weight in asked.items():
            found[bases[model]] = found.get(bases[model], 0.0) + weight
        return found


class CaseOrderSection(Section):
    """Cases that the paper orders by a figure of one system, the one with the largest first."""

    metric: Metric
    system: str
    cases: Annotated[tuple[str, ...], Field(min_length=2)]


class ExperimentFile(Section):
    name: Annotated[str, Field(min_length=1)]
    paper: str
    about: str = ""
    cases: Annotated[tuple[CaseSection, ...], Field(min_length=1)]
    case_orders: tuple[CaseOrderSection, ...] = ()
    notes: tuple[str, ...] = ()
    """What the simulation leaves out, and why figures differ."""


def read_experiment_file(path: Path) -> ExperimentFile:
    """Sources of models come back absolute. Raises FleetFileError: every problem of the file, one line each."""
    source = parse_yaml(read_text(path), str(path))
    try:
        experiment = ExperimentFile.model_validate_json(json.dumps(source.data, default=str), strict=True)
    except PydanticValidationError as error:
        raise FleetFileError([p.line(source) for p in problems_of(error, ExperimentFile)]) from error
    problems = [p.line(source) for i, case in enumerate(experiment.cases) for p in _problems(i, case)]
    problems += [p.line(source) for p in _problems_of_orders(experiment)]
    if problems:
        raise FleetFileError(problems)
    base = path.resolve().parent
    cases = tuple(c.model_copy(update={"fleet": resolved_fleet(c.fleet, base)}) for c in experiment.cases)
    return experiment.model_copy(update={"cases": cases})


def _problems(index: int, case: CaseSection) -> list[Problem]:
    systems = {s.name for s in case.systems}
    fleet = [replace(p, path=("cases", index, "fleet", *p.path)) for p in semantic_problems(case.fleet)]
    splits = [
        Problem(
            path=("cases", index, "systems", place, "fleet_mode"),
            value=system.fleet_mode.split().name,
            remedy=remedy,
        )
        for place, system in enumerate(case.systems)
        for pool in case.fleet.pools
        if system.fleet_mode is not None and (remedy := split_remedy(pool, system.fleet_mode.split())) is not None
    ]
    return [
        *fleet,
        *splits,
        *_problems_of_workload(index, case.workload),
        *([] if fleet else _problems_of_popularity(index, case)),
        *_unknown_systems(index, case, systems),
    ]


def _problems_of_workload(index: int, workload: WorkloadSection) -> list[Problem]:
    if workload.others is None or workload.sessions is None:
        return []
    remedy = "other requests come without sessions; leave out `others` or `sessions`"
    return [Problem(path=("cases", index, "workload", "others"), value=workload.others.share, remedy=remedy)]


def _problems_of_popularity(index: int, case: CaseSection) -> list[Problem]:
    known, popularity = [m.id for m in case.fleet.models], case.workload.popularity
    path = ("cases", index, "workload", "popularity")
    if unknown := [model for model in popularity or {} if model not in known]:
        remedy = f"the fleet has no such model; it has {', '.join(known)}"
        return [Problem(path=path, value=model, remedy=remedy) for model in unknown]
    if sum(case.weights().values()) > 0:
        return []
    return [Problem(path=path, value=popularity, remedy="no model is asked for; give one a share above 0")]


def _problems_of_orders(experiment: ExperimentFile) -> list[Problem]:
    """An order is of cases that have its system and publish, or at least show, its metric."""
    able = [
        {
            case.name
            for case in experiment.cases
            if order.system in {s.name for s in case.systems} and order.metric in {p.metric for p in case.published}
        }
        for order in experiment.case_orders
    ]
    return [
        Problem(
            path=("case_orders", place, "cases"),
            value=name,
            remedy=f"no case that publishes {order.metric} and has the system {order.system!r}; known: "
            f"{', '.join(sorted(able[place])) or 'none'}",
        )
        for place, order in enumerate(experiment.case_orders)
        for name in order.cases
        if name not in able[place]
    ]


def _unknown_systems(index: int, case: CaseSection, systems: Set[str]) -> list[Problem]:
    return [
        Problem(
            path=("cases", index, "published", place),
            value=name,
            remedy=f"no such system; known: {', '.join(s.name for s in case.systems)}",
        )
        for place, published in enumerate(case.published)
        for name in (*published.values, *(name for pair in published.orders for name in pair))
        if name not in systems
    ]
