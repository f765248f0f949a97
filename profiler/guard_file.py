"""A contention guard's grid as JSON: what one engine has learned is where another begins."""

import json
from pathlib import Path

from profiler.contention import ContentionGuard, GuardCell
from profiler.errors import ProfileUnusable

_REMEDY = "remove it, or replace it with one that this release wrote"


def write_guard(guard: ContentionGuard, path: Path) -> None:
    """Raises OSError."""
    cells = [{**cell._asdict(), "slowdown": slowdown} for cell, slowdown in guard.items()]
    path.write_text(json.dumps({"cells": cells}, indent=1) + "\n", encoding="utf-8")


def read_guard(path: Path) -> ContentionGuard:
    """Raises ProfileUnusable."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        grid = {GuardCell(**{k: int(v) for k, v in c.items() if k != "slowdown"}): float(c["slowdown"]) for c in cells}
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise ProfileUnusable(path=str(path), reason=reason, remedy=_REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileUnusable(path=str(path), reason="is not a contention guard's grid", remedy=_REMEDY) from error
    return ContentionGuard(grid=grid)
