"""Finds settings of a fleet file that contradict each other: each by itself is fine."""

from collections.abc import Sequence

from deploy.fleet_file.fleet_problems import Problem
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.watch_section import WatchSection
from deploy.fleet_file.yaml_source import KeyPath


def opposed_settings(
    models: Sequence[ModelSection], watch: WatchSection, *, unit_suspect_s: float, unit_lost_s: float
) -> list[Problem]:
    """`unit_suspect_s` and `unit_lost_s` are the gateway's."""
    bounds: list[tuple[KeyPath, str, float, str, float]] = [
        *((("models", i, "replicas"), "max", m.replicas.max, "min", m.replicas.min) for i, m in enumerate(models)),
        (("engine", "watch"), "kill_s", watch.kill_s, "suspect_s", watch.suspect_s),
        (("gateway",), "unit_lost_s", unit_lost_s, "unit_suspect_s", unit_suspect_s),
    ]
    return [
        Problem(
            path=(*section, upper),
            value=most,
            remedy=f"smaller than {lower} ({least:g}); raise it or lower {lower}",
        )
        for section, upper, most, lower, least in bounds
        if most < least
    ]
