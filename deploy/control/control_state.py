"""Defines what a control loop leaves to its successor. Its times are those of the control loop's clock; `shifted` makes
them another clock's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deploy.control.cordons import Cordons, LostCordon
from deploy.control.decision_history import NotedDecision
from deploy.control.demand_forecasts import KeptForecast
from deploy.control.neighbour_learning import LearnedStrain
from deploy.control.step_evidence import MeasuredUnit
from placement.demand import OWN_TARGETS, TargetMix
from placement.plan import Plan
from placement.scaling.pool_size import KeptSize

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDemand:
    """Holds what was learned of a model's traffic. `known_for_s` is the time that its rate is an average of.
    `arrival_cv` None: kept by a release that did not learn it.
    """

    model: str
    rate_per_s: float
    known_for_s: float
    prompt_tokens: float
    output_tokens: float
    last_asked_s: float | None
    targets: TargetMix = OWN_TARGETS
    arrival_cv: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReplica:
    unit_id: str
    model: str
    placed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBudget:
    """Says of a place or a model when it died lately, and until when it is out; 0: it is not."""

    key: str
    deaths_s: tuple[float, ...] = ()
    out_until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDeaths:
    """`slots`: by unit its place. `reasons`: by model why it is loaded nowhere."""

    slots: Mapping[str, str]
    places: tuple[KeptBudget, ...]
    loads: tuple[KeptBudget, ...]
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlState:
    """`wanted` is a digest of the catalog and of the units that the plan was made for. `is_plan_due`: it was about to
    be replaced. `used_s`: by model, when it was in use last, whoever asked. `moves_s`: when models that were served
    already were loaded, in the last minute. `steps`: what units measured, as of the last plan that was asked for, and
    `strains` what their models lost to each other. `forecasts` are on the clock of days and are not shifted.
    """

    noted_s: float
    wanted: str
    is_plan_due: bool
    plan: Plan
    goal: Plan
    asleep: tuple[str, ...]
    demand: tuple[KeptDemand, ...]
    used_s: Mapping[str, float]
    replicas: tuple[KeptReplica, ...]
    moves_s: tuple[float, ...]
    deaths: KeptDeaths
    decisions: tuple[NotedDecision, ...]
    cordons: Cordons = field(default_factory=Cordons)
    lost_cordons: tuple[LostCordon, ...] = ()
    steps: tuple[MeasuredUnit, ...] = ()
    sizes: tuple[KeptSize, ...] = ()
    strains: tuple[LearnedStrain, ...] = ()
    forecasts: tuple[KeptForecast, ...] = ()

    def shifted(self, by_s: float) -> "ControlState":
        """The same, with `by_s` added to every time."""
        return replace(
            self,
            noted_s=self.noted_s + by_s,
            demand=tuple(
                replace(d, last_asked_s=None if d.last_asked_s is None else d.last_asked_s + by_s) for d in self.demand
            ),
            used_s={model: used_s + by_s for model, used_s in self.used_s.items()},
            replicas=tuple(replace(r, placed_s=r.placed_s + by_s) for r in self.replicas),
            moves_s=tuple(at_s + by_s for at_s in self.moves_s),
            deaths=replace(
                self.deaths,
                places=tuple(_budget_shifted(b, by_s) for b in self.deaths.places),
                loads=tuple(_budget_shifted(b, by_s) for b in self.deaths.loads),
            ),
            lost_cordons=tuple(replace(c, lost_s=c.lost_s + by_s) for c in self.lost_cordons),
            decisions=tuple(replace(d, at_s=d.at_s + by_s) for d in self.decisions),
            sizes=tuple(replace(s, changed_s=s.changed_s + by_s) for s in self.sizes),
            strains=tuple(replace(s, seen_s=s.seen_s + by_s) for s in self.strains),
        )


def cordons_alone() -> ControlState:
    """Returns a state that is too old to go on with: only the cordons of such a one are used."""
    nothing, no_deaths = Plan(units=()), KeptDeaths(slots={}, places=(), loads=(), reasons={})
    return ControlState(
        noted_s=0.0,
        wanted="",
        is_plan_due=True,
        plan=nothing,
        goal=nothing,
        asleep=(),
        demand=(),
        used_s={},
        replicas=(),
        moves_s=(),
        deaths=no_deaths,
        decisions=(),
    )


def _budget_shifted(budget: KeptBudget, by_s: float) -> KeptBudget:
    out_until_s = budget.out_until_s and budget.out_until_s + by_s
    return replace(budget, deaths_s=tuple(at_s + by_s for at_s in budget.deaths_s), out_until_s=out_until_s)
