"""Kubernetes' protobuf envelope, as far as Helm writes it: Secrets and ConfigMaps of its release storage."""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\x00"
_META = {1: "name", 2: "generateName", 3: "namespace", 6: "resourceVersion"}
_MAPS = {11: "labels", 12: "annotations"}


class NotUnderstood(ValueError):
    """A kind or wire type that this decoder does not know."""


def decoded(raw: bytes) -> dict[str, Any]:
    """runtime.Unknown{typeMeta, raw} with a core/v1 Secret or ConfigMap in it."""
    assert raw.startswith(MAGIC)
    unknown = dict(_fields(raw[len(MAGIC) :]))
    types = dict(_fields(unknown[1]))
    api_version, kind = types[1].decode(), types[2].decode()
    if kind not in ("Secret", "ConfigMap"):
        raise NotUnderstood(f"protobuf {kind}")
    out: dict[str, Any] = {"apiVersion": api_version, "kind": kind, "metadata": {}, "data": {}}
    for field, value in _fields(unknown[2]):
        if field == 1:
            _read_metadata(value, out["metadata"])
        elif field == 2:
            key, data = _entry(value)
            out["data"][key] = base64.b64encode(data).decode() if kind == "Secret" else data.decode()
        elif field == 3 and kind == "Secret":
            out["type"] = value.decode()
    return out


def _read_metadata(raw: bytes, metadata: dict[str, Any]) -> None:
    for field, value in _fields(raw):
        if field in _META and value:
            metadata[_META[field]] = value.decode()
        elif field in _MAPS:
            key, data = _entry(value)
            metadata.setdefault(_MAPS[field], {})[key] = data.decode()


def _entry(raw: bytes) -> tuple[str, bytes]:
    entry = dict(_fields(raw))
    return entry[1].decode(), entry.get(2, b"")


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(raw, at)
            yield number, raw[at : at + size]
            at += size
        else:
            raise NotUnderstood(f"wire type {wire}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
