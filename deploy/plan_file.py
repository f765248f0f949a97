"""A plan as JSON: what `muxfleet plan --json` writes and `--current` reads."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import OptionNotUsable
from placement.plan import ModelPlacement, Plan, UnitPlan


class _Unit(BaseModel):
    model_config = ConfigDict(extra="ignore")
    unit: str
    models: dict[str, Annotated[int, Field(gt=0)]]


class _PlanFile(BaseModel):
    model_config = ConfigDict(extra="ignore")
    units: list[_Unit]


def read_plan(path: Path) -> Plan:
    """Raises OptionNotUsable."""
    try:
        units = _PlanFile.model_validate(json.loads(path.read_text(encoding="utf-8"))).units
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise _unusable(path, f"{place}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "it is not JSON") from error
    return Plan(
        units=tuple(
            UnitPlan(
                unit_id=u.unit,
                models=tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in sorted(u.models.items())),
            )
            for u in units
        )
    )


def _unusable(path: Path, reason: str) -> OptionNotUsable:
    return OptionNotUsable(option="--current", value=path, remedy=f"{reason}; give what muxfleet plan --json wrote")
