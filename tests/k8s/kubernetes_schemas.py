"""Objects against the schemas of an API server: strictly, as with fieldValidation=Strict, with defaults and CEL."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import celpy
import yaml
from helm_runner import LOADER
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

KUBERNETES = "1.35"
INT32 = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomKind:
    definition: Mapping[str, Any]
    schema: Mapping[str, Any]
    validator: Draft202012Validator


@dataclass(frozen=True, slots=True)
class CustomSchemas:
    """By apiVersion and kind."""

    kinds: Mapping[tuple[str, str], CustomKind]

    @staticmethod
    def read(files: Sequence[Path]) -> "CustomSchemas":
        kinds = {}
        for file in files:
            definition = yaml.load(file.read_text(), LOADER)["spec"]
            for version in definition["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                kinds[f"{definition['group']}/{version['name']}", definition["names"]["kind"]] = CustomKind(
                    definition=definition, schema=schema, validator=Draft202012Validator(_strict(schema, is_root=True))
                )
        return CustomSchemas(kinds)

    def problems(self, document: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[str]:
        kind = self.kinds.get((document["apiVersion"], document["kind"]))
        if kind is None:
            return _builtin_problems(document)
        document = self.defaulted(document)
        found = [_text(error) for error in kind.validator.iter_errors(document)]
        found += _repeated_keys(kind.schema, document, "")
        return sorted(found) or list(_rule_problems(kind.schema, document, old, ""))

    def defaulted(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """As the server stores it."""
        out = copy.deepcopy(dict(document))
        kind = self.kinds.get((out["apiVersion"], out["kind"]))
        if kind is not None:
            _set_defaults(kind.schema, out)
        return out


def _strict(schema: Any, *, is_root: bool = False) -> Any:
    """A structural schema as JSON schema that refuses unknown fields."""
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            out[key] = {name: _strict(child) for name, child in value.items()}
        elif key in ("items", "not") or key == "additionalProperties":
            out[key] = _strict(value)
        elif key not in ("default", "description"):
            out[key] = value  # anyOf, allOf, oneOf hold rules on values only
    keeps = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and not keeps:
        out["additionalProperties"] = False
    if is_root:
        out["properties"]["metadata"] = {"type": "object"}
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        out["type"] = [schema["type"], "null"]
    if schema.get("format") == "int32":
        out = {"minimum": -INT32, "maximum": INT32 - 1} | out
    return out


def _set_defaults(schema: Mapping[str, Any], value: Any) -> None:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in [
            n for n, v in value.items() if v is None and n in properties and not properties[n].get("nullable")
        ]:
            del value[name]  # the server drops such nulls
        for name, child in properties.items():
            if name not in value and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                _set_defaults(child, value[name])
        if isinstance(schema.get("additionalProperties"), Mapping):
            for child_value in value.values():
                _set_defaults(schema["additionalProperties"], child_value)
    elif isinstance(value, list):
        for item in value:
            _set_defaults(schema.get("items", {}), item)


def _repeated_keys(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    """x-kubernetes-list-type: map. The server refuses a list with two items of the same keys."""
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if name in value:
                yield from _repeated_keys(child, value[name], f"{path}.{name}".strip("."))
    elif isinstance(value, list):
        if schema.get("x-kubernetes-list-type") == "map":
            keys = schema["x-kubernetes-list-map-keys"]
            counted = Counter(tuple(str(item.get(key)) for key in keys) for item in value)
            yield from (f"{path}: Duplicate value: {found}" for found, count in counted.items() if count > 1)
        for i, item in enumerate(value):
            yield from _repeated_keys(schema.get("items", {}), item, f"{path}[{i}]")


def _rule_problems(schema: Mapping[str, Any], value: Any, old: Any, path: str) -> Iterator[str]:
    """x-kubernetes-validations. Rules that name oldSelf are for updates."""
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        activation = {"self": celpy.json_to_cel(value)}
        if old is not None:
            activation["oldSelf"] = celpy.json_to_cel(old)
        if not _program(rule["rule"]).evaluate(activation):
            yield f"{path}: {rule.get('message', rule['rule'])}"
    if isinstance(value, dict):
        before = old if isinstance(old, Mapping) else {}
        for name, child in schema.get("properties", {}).items():
            if name in value:
                yield from _rule_problems(child, value[name], before.get(name), f"{path}.{name}".strip("."))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _rule_problems(schema.get("items", {}), item, None, f"{path}[{i}]")


@cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def _builtin_problems(document: Mapping[str, Any]) -> list[str]:
    validator = _builtin_validator(document["apiVersion"], document["kind"])
    if validator is None:
        return [f"no kind {document['kind']} in {document['apiVersion']}"]
    return sorted(_text(error) for error in validator.iter_errors(document))


@cache
def _builtin_validator(api_version: str, kind: str) -> Draft202012Validator | None:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = folder / f"{kind.lower()}-{group}.json"
    if not file.is_file():
        return None
    definitions = Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
    registry = Registry().with_resources([("/api/_definitions.json", definitions), ("_definitions.json", definitions)])
    return Draft202012Validator(json.loads(file.read_text()), registry=registry)


def _text(error: Any) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    return f"{path}: {error.message[:200]}"
