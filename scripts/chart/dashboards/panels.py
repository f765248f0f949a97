"""Defines what a dashboard of the chart shows, before it is Grafana's JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`queries` maps legends to PromQL, in which `$name` is a variable of the dashboard."""

    title: str
    queries: Mapping[str, str]
    unit: str
    description: str = ""
    is_stacked: bool = False
    may_be_negative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What a reader chooses above the panels: the values of a label of a metric (or of a selection of its series)."""

    name: str
    label: str
    of_metric: str
    shown_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    name: str
    title: str
    variables: Sequence[Variable]
    rows: Mapping[str, Sequence[Panel]]
    is_annotated: bool = True
    """Marks losses, restarts, plans and moves: needs the variable `job`."""


RELEASE = Variable(name="job", label="job", of_metric="muxfleet_build_info", shown_as="release")
MODEL = Variable(
    name="model", label="model", of_metric='muxfleet_requests_total{job=~"$job", model!=""}', shown_as="model"
)
