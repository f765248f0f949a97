"""Schemas of the Kubernetes types that values pass through, in place of the marks that `values` leaves.

kubernetes-1.35.json holds them without their descriptions, taken from the strict schemas of the package
kubernetes-validate (Kubernetes API, Apache-2.0). `python -m scripts.chart.kubernetes_types` takes them anew.
"""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

MARK = "x-kubernetes-type"
VERSION = "1.35"
_FILE = Path(__file__).with_name(f"kubernetes-{VERSION}.json")
_PREFIX = "#/$defs/"
_KUBERNETES = "io.k8s."


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with references for marks, and the definitions that they reach."""
    definitions = json.loads(_FILE.read_text())
    used: dict[str, Any] = {}
    _collect(_names(schema), definitions, used)
    for name in _listed(schema):
        used[name] |= {"type": "object"}  # Kubernetes' own schema lets nulls into a list, and the server does not
    whole = _replaced(schema)
    assert isinstance(whole, dict)
    whole["$defs"] |= {name: used[name] for name in sorted(used)}
    return whole


def extract(roots: frozenset[str]) -> dict[str, Any]:
    """The definitions that `roots` reach, from the installed kubernetes-validate."""
    package = resources.files("kubernetes_validate")
    text = (package / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict" / "_definitions.json").read_text()
    used: dict[str, Any] = {}
    _collect(roots, json.loads(text)["$defs"], used)
    return {name: _without_descriptions(used[name]) for name in sorted(used)}


def marks(schema: object) -> frozenset[str]:
    return frozenset(_names(schema))


def _collect(names: Iterator[str] | frozenset[str], definitions: Mapping[str, Any], used: dict[str, Any]) -> None:
    for name in names:
        if name not in used:
            used[name] = definitions[name]
            _collect(_names(used[name]), definitions, used)


def _names(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if MARK in node:
            yield node[MARK]
        if str(node.get("$ref", "")).startswith(_PREFIX + _KUBERNETES):
            yield node["$ref"].removeprefix(_PREFIX)
        for value in node.values():
            yield from _names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _names(value)


def _listed(node: object) -> Iterator[str]:
    """Yields the types that values are lists of."""
    if isinstance(node, dict):
        if MARK in (items := node.get("items") or {}):
            yield items[MARK]
        for value in node.values():
            yield from _listed(value)
    elif isinstance(node, list):
        for value in node:
            yield from _listed(value)


def _replaced(node: object) -> object:
    if isinstance(node, dict):
        if MARK in node:
            return {"$ref": _PREFIX + node[MARK]}
        return {key: _replaced(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value) for value in node]
    return node


def _without_descriptions(node: object) -> object:
    if isinstance(node, dict):
        return {
            key: _without_descriptions(value)
            for key, value in node.items()
            if not (key == "description" and isinstance(value, str)) and not key.startswith("x-kubernetes-")
        }
    if isinstance(node, list):
        return [_without_descriptions(value) for value in node]
    return node


def main() -> None:
    from scripts.chart.values import ChartValues

    definitions = extract(marks(ChartValues.model_json_schema(by_alias=True)))
    _FILE.write_text(json.dumps(definitions, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
