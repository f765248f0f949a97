"""A contention guard's grid as JSON: what one engine has learned is where another begins."""

import json
import os
from pathlib import Path

from filelock import FileLock

from profiler.contention import ContentionGuard, GuardCell
from profiler.errors import ProfileUnusable
from profiler.specs import DeviceSpec

_LOCKED_S = 10.0  # others read and write it within milliseconds
_REMEDY = "remove it, or name another file"


def write_guard(guard: ContentionGuard, path: Path, device: DeviceSpec) -> None:
    """Replaces the file in one step. Cells that this guard has seen itself stand for themselves; of the others, those
    that the file holds by now stay: engines beside this one learn, too. Raises OSError, ProfileUnusable.
    """
    _check_folder(path)  # the lock would make it
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCKED_S):
        grid = {**read_guard_grid(path, device), **dict(guard.learned())}
        cells = [{**cell._asdict(), "slowdown": slowdown} for cell, slowdown in sorted(grid.items())]
        content = {"device": device.name, "num_sms": device.num_sms, "cells": cells}
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)


def read_guard_grid(path: Path, device: DeviceSpec | None = None) -> dict[GuardCell, float]:
    """Slowdowns by cell: nothing where the file is not there yet, or is of another `device` (None: of any).

    Raises ProfileUnusable: it is something else, or its folder is not there.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        grid = {_cell(cell): float(cell["slowdown"]) for cell in content["cells"]}
        of_device = (content["device"], content["num_sms"])
    except FileNotFoundError:
        _check_folder(path)
        return {}
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise ProfileUnusable(path=str(path), reason=reason, remedy=_REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProfileUnusable(path=str(path), reason="is not a contention guard's grid", remedy=_REMEDY) from error
    return grid if device is None or of_device == (device.name, device.num_sms) else {}


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        reason = f"the folder {path.parent} does not exist"
        raise ProfileUnusable(path=str(path), reason=reason, remedy="make the folder, or name another file")


def _cell(cell: dict[str, object]) -> GuardCell:
    return GuardCell(**{name: int(str(value)) for name, value in cell.items() if name != "slowdown"})
