"""values.yaml and the table of values, from the classes in `values`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deploy.fleet_file.settings import FleetFile
from scripts.chart.values import ChartValues

_HEADER = """\
# Values of the muxfleet chart, with their defaults. Written by `make chart` from scripts/chart/values.py.
"""
FLEET_DEFAULTS = {"gateway": {"host": "0.0.0.0", "proxy": "haproxy"}, "state": {"store": "cluster"}}
"""What a fleet in Kubernetes needs or runs best with, where the fleet file's own defaults are made for one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """`default` None: a section, described by the rows below it."""

    path: str
    name: str
    depth: int
    description: str
    default: str | None


def value_rows() -> Iterator[ValueRow]:
    yield from _rows(ChartValues, prefix="", depth=0)


def needed_paths() -> list[str]:
    """Values that the templates cannot do without; values.yaml has them all."""
    others = ("fleet", "global", "kuberay-operator")
    return [row.path for row in value_rows() if row.default not in (None, "null") and not row.path.startswith(others)]


def values_yaml() -> str:
    lines = [_HEADER.rstrip()]
    for row in value_rows():
        if row.depth == 0:
            lines.append("")
        indent = "  " * row.depth
        lines += [f"{indent}# -- {line}" if i == 0 else f"{indent}# {line}" for i, line in _numbered(row.description)]
        lines += [indent + line for line in _assignment(row.name, row.default)]
    return "\n".join(lines) + "\n"


def values_table() -> str:
    lines = ["| key | default | description |", "|---|---|---|"]
    for row in value_rows():
        if row.default is not None:
            shown = f"`{row.default}`".replace("|", "\\|")
            description = " ".join(row.description.split()).replace("|", "\\|")
            lines.append(f"| `{row.path}` | {shown} | {description} |")
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], *, prefix: str, depth: int) -> Iterator[ValueRow]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        path = prefix + key
        section = _section_of(field)
        if field.annotation is FleetFile or section is None:
            default = FLEET_DEFAULTS if field.annotation is FleetFile else field.get_default(call_default_factory=True)
            yield ValueRow(
                path=path, name=key, depth=depth, description=field.description or "", default=json.dumps(default)
            )
        else:
            text = field.description or (section.__doc__ or "").strip()
            yield ValueRow(path=path, name=key, depth=depth, description=text, default=None)
            yield from _rows(section, prefix=f"{path}.", depth=depth + 1)


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(line.strip() for line in text.splitlines() if line.strip())


def _assignment(name: str, default: str | None) -> list[str]:
    if default is None:
        return [f"{name}:"]
    value = json.loads(default)
    text = yaml.safe_dump({name: value}, sort_keys=False, width=110, default_flow_style=False)
    return text.rstrip().splitlines()
