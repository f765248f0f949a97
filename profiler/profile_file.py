"""Profiles as parquet: one row per measured launch, and what they were measured on in the metadata."""

import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.errors import ProfileUnusable
from profiler.measurement import Measurement
from profiler.partition_rates import PartitionRate
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.specs import DeviceSpec, ModelSpec
from traces.whole_file import write_whole

_KEY = b"muxfleet.profile"
_VERSION = 1
_SHAPE_COLUMNS = ("sms", "prompts", "new_tokens", "context_tokens", "sequences", "depth")
_BESIDE_COLUMNS = tuple(f"beside_{name}" for name in _SHAPE_COLUMNS)
_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("phase", pa.string()),
        *((name, pa.int32()) for name in _SHAPE_COLUMNS),
        *((name, pa.int32()) for name in _BESIDE_COLUMNS),
        ("seconds", pa.float64()),
        ("high_s", pa.float64()),
        ("repeats", pa.int32()),
        ("is_held_out", pa.bool_()),
    ]
)
_REMEDY = "measure one with `muxfleet profile`"


def write_profile(profile: Profile, path: Path) -> None:
    """Replaces the file in one step. Raises OSError."""
    rows = [_row(name, m) for name, model in profile.models.items() for m in model.measurements]
    head = {
        "version": _VERSION,
        "engine": profile.engine,
        "num_gpus": profile.num_gpus,
        "device": asdict(profile.device),
        "machine": dict(profile.machine),
        "models": {name: asdict(model.spec) for name, model in profile.models.items()},
        "partition_rates": [asdict(rate) for rate in profile.partition_rates],
        "host_s": profile.host_s,
    }
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({_KEY: json.dumps(head).encode()}))
    written = io.BytesIO()
    pq.write_table(table, written, compression="zstd")
    write_whole(path, written.getvalue())


def read_profile(path: Path) -> Profile:
    """Raises ProfileUnusable."""
    if os.path.isdir(path):  # pyarrow would read every file in it as one data set
        raise ProfileUnusable(path=str(path), reason="is a folder", remedy=_REMEDY)
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise ProfileUnusable(path=str(path), reason="no such file", remedy=_REMEDY) from error
    except (OSError, pa.ArrowException) as error:
        reason = f"is not a readable parquet file ({str(error).splitlines()[0]})"
        raise ProfileUnusable(path=str(path), reason=reason, remedy=_REMEDY) from error
    raw = (table.schema.metadata or {}).get(_KEY)
    if raw is None:
        raise ProfileUnusable(path=str(path), reason="is parquet, but not a muxfleet profile", remedy=_REMEDY)
    try:
        head = json.loads(raw)
        if head["version"] != _VERSION:
            reason = f"has format version {head['version']}, this release reads {_VERSION}"
            raise ProfileUnusable(path=str(path), reason=reason, remedy=_REMEDY)
        return _profile(head, table.to_pylist())
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProfileUnusable(path=str(path), reason=f"is damaged ({error})", remedy=_REMEDY) from error


def _profile(head: Mapping[str, Any], rows: list[dict[str, Any]]) -> Profile:
    measurements: dict[str, list[Measurement]] = {name: [] for name in head["models"]}
    for number, row in enumerate(rows, start=1):
        _check(number, row)
        measurements[row["model"]].append(_measurement(row))
    return Profile(
        engine=head["engine"],
        num_gpus=head["num_gpus"],
        device=DeviceSpec(**head["device"]),
        machine=head["machine"],
        models={
            name: ModelProfile(spec=ModelSpec(**spec), measurements=tuple(measurements[name]))
            for name, spec in head["models"].items()
        },
        partition_rates=tuple(PartitionRate(**rate) for rate in head.get("partition_rates", ())),
        host_s=head.get("host_s"),
    )


def _check(number: int, row: Mapping[str, Any]) -> None:
    """Raises ValueError: what is fitted to the rows would not say which of them it cannot use."""
    for prefix in ("", "beside_") if row["beside_sms"] is not None else ("",):
        _check_shape(number, row, prefix)
    if row["seconds"] is None or not 0 < row["seconds"] < math.inf:
        raise ValueError(f"row {number}: seconds is {row['seconds']}, no time that a launch can take")


def _check_shape(number: int, row: Mapping[str, Any], prefix: str) -> None:
    """Raises ValueError: no launch is like that. A sequence that decodes has a prompt behind it."""
    has_prompts, has_sequences = bool(row[f"{prefix}prompts"]), bool(row[f"{prefix}sequences"])
    least_of = {"sms": 1, "new_tokens": int(has_prompts), "depth": int(has_sequences)}
    for name in _SHAPE_COLUMNS:
        value, least = row[f"{prefix}{name}"], least_of.get(name, 0)
        if value is None or value < least:
            raise ValueError(f"row {number}: {prefix}{name} is {value}, not {least} or more")
    if not has_prompts and not has_sequences:
        raise ValueError(f"row {number}: {prefix}prompts and {prefix}sequences are both 0")


def _row(model: str, measurement: Measurement) -> dict[str, object]:
    launch, beside = asdict(measurement.launch), measurement.beside
    return {
        "model": model,
        "phase": measurement.launch.phase,
        **launch,
        **({} if beside is None else {f"beside_{name}": value for name, value in asdict(beside).items()}),
        "seconds": measurement.seconds,
        "high_s": measurement.high_s,
        "repeats": measurement.repeats,
        "is_held_out": measurement.is_held_out,
    }


def _measurement(row: Mapping[str, Any]) -> Measurement:
    beside = None
    if row["beside_sms"] is not None:
        beside = LaunchShape(**{name: row[f"beside_{name}"] for name in _SHAPE_COLUMNS})
    return Measurement(
        launch=LaunchShape(**{name: row[name] for name in _SHAPE_COLUMNS}),
        beside=beside,
        seconds=row["seconds"],
        high_s=row["high_s"],
        repeats=row["repeats"],
        is_held_out=row["is_held_out"],
    )
