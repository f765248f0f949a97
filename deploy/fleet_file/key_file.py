"""The file of API keys: hashes and what each key may do. `muxfleet keys` writes it, gateways read it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from deploy.errors import FleetFileError, KeyFileError, OutputNotWritable
from deploy.fleet_file.fleet_problems import problems_of
from deploy.fleet_file.setting_types import KeyHash, KeyId, KeyOwner, ModelId
from deploy.fleet_file.yaml_source import parse_yaml, path_text
from deploy.owner_file import replace_for_owner
from router.access.api_keys import KeyEntry, KeyRing
from router.request_terms import Priority

_MAX_BYTES = 8 * 1024 * 1024
_MOST_PER_MINUTE = 10**12
_LOCKED_S = 10.0  # a change takes milliseconds
PriorityName = Literal["low", "normal", "high"]
_PRIORITIES: Mapping[str, Priority] = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH}


def _time_of(value: object) -> datetime:
    """Reads a day, or a day and a time: of UTC where no zone is named."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError as error:
        remedy = "must be a day or a time such as 2027-01-31 or 2027-01-31T18:00:00Z"
        raise PydanticCustomError("no_time", "{remedy}", {"remedy": remedy}) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


class StoredKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: KeyId
    name: KeyOwner
    hash: KeyHash
    models: tuple[ModelId, ...] | None = None
    requests_per_minute: Annotated[int, Field(ge=1, le=_MOST_PER_MINUTE)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=_MOST_PER_MINUTE)] | None = None
    priority: PriorityName = "normal"
    admin: bool = False
    tighten_slo: bool = False
    expires: Annotated[datetime, BeforeValidator(_time_of)] | None = None

    def entry(self) -> KeyEntry:
        return KeyEntry(
            key_id=self.id,
            name=self.name,
            hash=self.hash,
            models=None if self.models is None else frozenset(self.models),
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            priority=_PRIORITIES[self.priority],
            is_admin=self.admin,
            may_tighten_slo=self.tighten_slo,
            expires_s=None if self.expires is None else self.expires.timestamp(),
        )


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[tuple[StoredKey, ...], Field(max_length=10_000)] = ()

    def ring(self) -> KeyRing:
        return KeyRing(key.entry() for key in self.keys)

    def with_key(self, key: StoredKey) -> "KeyFile":
        return KeyFile(keys=(*self.keys, key))

    def without(self, key_id: str) -> "KeyFile":
        return KeyFile(keys=tuple(key for key in self.keys if key.id != key_id))

    def to_yaml(self) -> str:
        entries = [key.model_dump(mode="json", exclude_defaults=True) for key in self.keys]
        return "# Written by `muxfleet keys`. Hashes only: the keys themselves are nowhere.\n" + yaml.safe_dump(
            {"keys": entries}, sort_keys=False
        )


def parse_key_file(text: str, *, name: str) -> KeyFile:
    """Raises KeyFileError."""
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return KeyFile()
    try:
        source = parse_yaml(text, name)
    except FleetFileError as error:
        place, _, reason = error.problems[0].partition(": ")
        raise KeyFileError(path=place, reason=reason) from error
    try:
        file = KeyFile.model_validate_json(json.dumps(source.data, default=str))
    except ValidationError as error:
        first = next(problems_of(error, KeyFile))  # shown without its value, which may be secret
        reason = f"{path_text(first.path) or 'the file'}: {first.remedy}"
        raise KeyFileError(path=source.place(first.path), reason=reason) from error
    ids = [key.id for key in file.keys]
    if len(set(ids)) < len(ids):
        raise KeyFileError(path=name, reason="two keys have one id; revoke one of them")
    return file


def read_key_file(path: Path) -> KeyFile:
    """Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        remedy = "no such file; make one with `muxfleet keys new NAME --file FILE`"
        raise KeyFileError(path=str(path), reason=remedy) from error
    except OSError as error:
        raise KeyFileError(path=str(path), reason=f"cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_BYTES:
        raise KeyFileError(path=str(path), reason=f"larger than {_MAX_BYTES} bytes; is this a file of keys?")
    try:
        return parse_key_file(raw.decode("utf-8-sig"), name=str(path))
    except UnicodeDecodeError as error:
        raise KeyFileError(path=str(path), reason=f"not UTF-8 text (byte {error.start})") from error


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keeps other commands from changing the file between the reading and the writing of this one, also by a link.

    Raises KeyFileError, OutputNotWritable.
    """
    there = path.resolve()
    lock = FileLock(there.with_name(f".{there.name}.lock"), timeout=_LOCKED_S, mode=0o600)
    try:
        held = lock.acquire()
    except Timeout as error:
        reason = f"another command has been changing it for {_LOCKED_S:g} s; end that one, or try again"
        raise KeyFileError(path=str(path), reason=reason) from error
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error
    with held:
        yield


def write_key_file(path: Path, keys: KeyFile) -> None:
    """Writes the file in one step: a gateway that reads meanwhile sees the old file or the new one. Only its owner may
    read it. Follows links: the gateway reads what they lead to.

    Raises OutputNotWritable.
    """
    try:
        replace_for_owner(path.resolve(), keys.to_yaml().encode())
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error
