"""The table of docs/operations.md of what a changed setting restarts, held against what `apply --dry-run` says."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.fleet_file.section import Section
from deploy.fleet_file.settings import FleetFile
from deploy.serve.fleet_change import FleetChange, change_between, only_at_start
from deploy.serve.render import serve_config

GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"
BASE: dict[str, Any] = {
    "models": [{"id": "a", "source": "/a"}, {"id": "b", "source": "/b"}],
    "pools": [{"name": "one", "nodes": {"max": 2}}, {"name": "two"}],
}
# Where the type does not say what another value would be.
OTHER: dict[str, Any] = {
    "pools[].sglang.decode_sms": [16],
    "pools[].sglang.args": {"a": 1},
    "pools[].gpu_type": "H100",
    "pools[].node_labels": {"place": "here"},
    "gateway.node_labels": {"place": "here"},
    "pools[].nodes.max": 3,
    "pools[].scaling": {"shadow": True},
    "models[].dtype": "float32",
    "models[].base": "b",
    "models[].revision": "main",
    "pools[].backend": "sglang",
    "placement.min_gain": 0.5,
    "placement.max_cost_per_hour": 40.0,
    "engine.dtype": "float32",
    "engine.backend": "sglang",
    "engine.policy": "adbs",
    "placement.solver": "memory_greedy",
    "placement.replan": "off",
    "gateway.cors_origins": ["*"],
    "engine.block_bytes": 1 << 20,
    "gateway.host": "0.0.0.0",
    "state.folder": "/elsewhere",
}
GROUPS = ("nothing", "in place", "units, one by one", "gateways, one by one", "a new start")


def leaves(section: type[Section], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting with its annotation."""
    for name, field in section.model_fields.items():
        found, is_list = subsection(field.annotation)
        if found is None:
            yield f"{path}{name}", field.annotation
        else:
            yield from leaves(found, f"{path}{name}{'[]' if is_list else ''}.")


def subsection(annotation: Any) -> tuple[type[Section] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return subsection(arguments[0])
    if origin is tuple:
        return subsection(arguments[0])[0], True
    return None, False


SETTINGS = dict(leaves(FleetFile))


def value_of(fleet: FleetFile, path: str) -> Any:
    found: Any = fleet
    for key in path.split("."):
        found = getattr(found, key.removesuffix("[]"))
        found = found[0] if key.endswith("[]") else found
    return found


def another(path: str, before: Any) -> Any:
    if path in OTHER:
        return OTHER[path]
    choices = [a for part in (SETTINGS[path], *typing.get_args(SETTINGS[path])) for a in typing.get_args(part)]
    literals = [c for c in choices if isinstance(c, str | int) and c != before]
    if literals:
        return literals[0]
    if isinstance(before, bool):
        return not before
    if isinstance(before, int | float):
        return before + 1
    return 3 if "int" in str(SETTINGS[path]) or "ByteSize" in str(SETTINGS[path]) else "another"


def changed(path: str) -> FleetFile:
    """With another value, of the first pool and the first model."""
    fleet = FleetFile.model_validate(BASE)
    document = fleet.model_dump(mode="json", exclude_unset=True)
    place = document
    *above, last = path.split(".")
    for key in above:
        place = place.setdefault(key.removesuffix("[]"), [{}] if key.endswith("[]") else {})
        place = place[0] if isinstance(place, list) else place
    place[last] = another(path, value_of(fleet, path))
    if path.startswith("pools[].sglang"):  # nothing of it travels otherwise
        document["pools"][0]["backend"] = "sglang"
    return FleetFile.model_validate(document)


def applications(fleet: FleetFile) -> dict[str, Any]:
    return {a["name"]: a for a in serve_config(fleet)["applications"]}


def told(path: str) -> tuple[str, FleetChange]:
    """The group that `apply --dry-run` puts a setting in, and its words."""
    base = FleetFile.model_validate(BASE)
    if path.startswith("pools[].sglang"):
        pools = [{"name": "one", "backend": "sglang"}, {"name": "two"}]
        base = FleetFile.model_validate({**BASE, "pools": pools})
    fleet = changed(path)
    change = change_between(applications(base), applications(fleet))
    if any(line.startswith("the control loop") for line in change.restarts):
        return "control loop", change
    if any(line.startswith("the units") for line in change.restarts):
        return "units, one by one", change
    if change.restarts:
        return "gateways, one by one", change
    http = [serve_config(f)["http_options"] for f in (base, fleet)]
    if only_at_start(*http) or fleet.gateway.proxy != base.gateway.proxy:
        return "a new start", change
    return "in place" if change.in_place else "nothing", change


def documented() -> dict[str, str]:
    """By setting, its group in the guide."""
    table = re.search(r"<!-- restarts: begin -->\n(.*?)<!-- restarts: end -->", GUIDE.read_text(), flags=re.DOTALL)
    assert table is not None
    found: dict[str, str] = {}
    for line in table[1].splitlines()[2:]:
        settings, group = (cell.strip() for cell in line.strip("|").split("|")[:2])
        for setting in re.findall(r"`([^`]+)`", settings):
            names = [n for n in SETTINGS if n == setting or (setting.endswith(".*") and n.startswith(setting[:-1]))]
            assert names, f"{setting} is no setting"
            exact = not setting.endswith(".*")
            found |= {n: group for n in names if exact or n not in found}
    return found


def test_restarts_table__settings_of_the_fleet_file__are_all_there_in_a_known_group() -> None:
    assert documented().keys() == SETTINGS.keys()
    assert set(documented().values()) <= set(GROUPS)


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_restarts_table__any_setting__is_as_the_dry_run_says(setting: str) -> None:
    assert told(setting)[0] == documented()[setting]


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_change__any_setting__never_replaces_the_control_loop(setting: str) -> None:
    group, change = told(setting)

    assert group != "control loop", change


@pytest.mark.parametrize("setting", [s for s in sorted(SETTINGS) if s.startswith("pools[].") and s != "pools[].name"])
def test_change__any_setting_of_one_pool__leaves_units_of_the_others_alone(setting: str) -> None:
    _, change = told(setting)

    assert not [line for line in change.restarts if "pool two" in line]
