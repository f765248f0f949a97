"""The fleet as a gateway sees it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pdmux_actor.lease import UnitReport
from pdmux_actor.messages import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model the fleet offers, whether or not a unit holds it now. `can_wake`: a request makes a unit take it up.
    `adapter_of`: the base of a LoRA adapter, whose `source` and `revision` these are: its tokenizer. `weights` name
    what it is loaded from, with its base's: under other names it says something else. `problem`: why no unit will load
    it for now; "" where one would.
    """

    model: str
    source: str
    revision: str | None
    slo: Slo
    created_s: int
    can_wake: bool = False
    adapter_of: str | None = None
    weights: tuple[str | None, ...] = ()
    problem: str = ""

    @property
    def has_turns(self) -> bool:
        """Says whether it comes back to a place that it gave to others."""
        return self.can_wake and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitView:
    """A unit's newest report and its age when the view was made."""

    report: UnitReport
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoadTimes:
    """Counts how often a model was loaded since the control loop started, and the seconds that took in all."""

    model: str
    loads: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Holds what the control loop tells every gateway. `num_gateways` share the rates of API
    keys. `events`: by kind, how many fleet events there were since the control loop started.
    """

    models: tuple[ModelCard, ...]
    units: tuple[UnitView, ...]
    stream_token: str
    num_gateways: int = 1
    events: Mapping[str, int] = field(default_factory=dict)
    load_times: tuple[ModelLoadTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNews:
    """A view, and a mark that another one bears when it tells anything else: of models, of units (but for how old
    their reports are) or of gateways.
    """

    view: FleetView
    version: tuple[int, ...]


def wake_times(view: FleetView) -> Mapping[str, float]:
    """Returns, of models whose weights are in a unit's host memory, the seconds until the quickest of them could
    serve.
    """
    found: dict[str, float] = {}
    for unit in view.units:
        for status in unit.report.models:
            if status.asleep is not None and not unit.report.is_leaving:
                found[status.model] = min(found.get(status.model, math.inf), status.asleep.wake_s)
    return found


_DECODER: msgspec.msgpack.Decoder[FleetNews] = msgspec.msgpack.Decoder(FleetNews)


def write_news(news: FleetNews) -> bytes:
    return msgspec.msgpack.encode(news)


def read_news(body: bytes) -> FleetNews:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFleet:
    """`age_s` is how long ago the control loop told it; the ages of units' reports are as of then."""

    age_s: float
    models: tuple[ModelCard, ...]
    units: tuple[UnitView, ...]


def known_fleet(view: FleetView, age_s: float) -> KnownFleet:
    """Returns the view without what lets into units."""
    return KnownFleet(age_s=age_s, models=view.models, units=view.units)
