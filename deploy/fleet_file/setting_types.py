"""Defines what single values of a fleet file, or of a key file, may be."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from deploy.fleet_file.replan_mode import Replan
from pdmux_actor.backends.registry import BACKENDS, NAMED
from pdmux_actor.scheduling.policies.registry import POLICIES
from placement.solvers.registry import SOLVERS
from profiler.devices import DEVICES
from router.access.api_keys import HASH_SHAPE
from traces.register import Named, Register


def is_known(register: Register[Named]) -> Callable[[str], str]:
    """Checks a value; the schema and the error both list what the register holds."""

    def known(name: str) -> str:
        if name not in register:
            raise PydanticCustomError("unknown_name", "{remedy}", {"remedy": register.remedy(name)})
        return name

    return known


def names_schema(names: Iterable[str]) -> dict[str, Any]:
    return {"enum": list(names), "type": "string"}


_MODEL_ID = r"^[A-Za-z0-9](?:[A-Za-z0-9._:-]|/[A-Za-z0-9._:-])*$"
_NAME = r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$"
_DOMAIN = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
_LABEL_KEY = rf"^(?:{_DOMAIN}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?$"
_LABEL_VALUE = r"^[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?$"
_KEY_ID = r"^[0-9a-f]{12}$"
_KEY_OWNER = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
TIME_OF_DAY = r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"

PATTERN_REMEDIES: Mapping[str, str] = {
    _MODEL_ID: "must be letters, digits and ._:-/ that begin with a letter or digit",
    _NAME: "must be lower-case letters, digits and dashes (at most 40)",
    _LABEL_KEY: "must be at most 63 of a-z, A-Z, 0-9 and ._- between letters or digits, after a domain/ or none",
    _LABEL_VALUE: "must be a-z, A-Z, 0-9 and ._- between letters or digits",
    _KEY_ID: "must be the 12 hexadecimal digits that `muxfleet keys new` shows",
    _KEY_OWNER: "must be at most 63 letters, digits and ._- that begin with a letter or digit",
    TIME_OF_DAY: 'must be a time of day (UTC) as "07:30", in quotes',
    HASH_SHAPE: "must be what `muxfleet keys new` writes: sha256: and 64 hexadecimal digits",
}

ModelId = Annotated[str, StringConstraints(max_length=128, pattern=_MODEL_ID)]
"""Chosen so that an id is usable as it stands in a URL path, a metric label and a file name."""

Name = Annotated[str, StringConstraints(pattern=_NAME)]
LabelKey = Annotated[str, StringConstraints(max_length=317, pattern=_LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL_VALUE)]
KeyId = Annotated[str, StringConstraints(pattern=_KEY_ID)]
KeyOwner = Annotated[str, StringConstraints(pattern=_KEY_OWNER)]
TimeOfDay = Annotated[str, StringConstraints(pattern=TIME_OF_DAY)]
KeyHash = Annotated[str, StringConstraints(pattern=HASH_SHAPE)]
DeviceName = Annotated[str, WithJsonSchema({"examples": list(DEVICES), "type": "string"})]
"""Whatever its case, so the schema only shows the names."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Weights = Literal["int8", "int4", "dtype"]
PolicyName = Annotated[str, AfterValidator(is_known(POLICIES)), WithJsonSchema(names_schema(POLICIES))]


def _is_named(backend: str) -> str:
    entry = BACKENDS[backend]
    if entry.stands_for is not None:
        device = next(iter(entry.kinds))
        remedy = f"is what {entry.stands_for} runs as on {device} devices; set device: {device}"
        raise PydanticCustomError("unnamed_backend", "{remedy}", {"remedy": remedy})
    return backend


BackendName = Annotated[
    str, AfterValidator(is_known(BACKENDS)), AfterValidator(_is_named), WithJsonSchema(names_schema(NAMED))
]


def _is_online(solver: str) -> str:
    if not SOLVERS[solver].online:
        remedy = f"is for muxfleet plan --solver {solver} only; use one of {', '.join(_RUNNING)}"
        raise PydanticCustomError("offline_solver", "{remedy}", {"remedy": remedy})
    return solver


_RUNNING = tuple(name for name, solver in SOLVERS.items() if solver.online)
AnySolverName = Annotated[str, AfterValidator(is_known(SOLVERS)), WithJsonSchema(names_schema(SOLVERS))]
SolverName = Annotated[AnySolverName, AfterValidator(_is_online), WithJsonSchema(names_schema(_RUNNING))]
"""One that a control loop may use."""

WrittenReplan = Annotated[Replan, BeforeValidator(lambda value: "off" if value is False else value)]
"""YAML makes false of a bare off."""
