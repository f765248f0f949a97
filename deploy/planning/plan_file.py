"""A plan as JSON: what `muxfleet plan --json` writes and `--current` reads."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import OptionNotUsable
from deploy.fleet_file.fleet_problems import problems_of
from deploy.fleet_file.yaml_source import path_text
from placement.plan import ModelPlacement, Plan, UnitPlan


class _Unit(BaseModel):
    model_config = ConfigDict(extra="ignore")
    unit: str
    models: dict[str, Annotated[int, Field(gt=0)]]


class _PlanFile(BaseModel):
    model_config = ConfigDict(extra="ignore")
    units: list[_Unit]


def read_plan(path: Path, *, option: str) -> Plan:
    """Raises OptionNotUsable: the file that `option` names is not a plan."""

    def unusable(reason: str) -> OptionNotUsable:
        return OptionNotUsable(option=option, value=path, remedy=f"{reason}; give what muxfleet plan --json wrote")

    try:
        units = _PlanFile.model_validate(json.loads(path.read_text(encoding="utf-8"))).units
    except OSError as error:
        raise unusable(error.strerror or str(error)) from error
    except ValidationError as error:
        first = next(problems_of(error, _PlanFile))
        raise unusable(f"{path_text(first.path) or 'the file'}: {first.remedy}") from error
    except (ValueError, RecursionError) as error:
        raise unusable("it is not JSON") from error
    return Plan(
        units=tuple(
            UnitPlan(
                unit_id=u.unit,
                models=tuple(ModelPlacement(model=m, quota_blocks=q) for m, q in sorted(u.models.items())),
            )
            for u in units
        )
    )
