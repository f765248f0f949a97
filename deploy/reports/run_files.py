"""Reads what commands wrote with --json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.errors import OptionNotUsable

_ASK = "name a file that simulate, bench or compare has written with --json"
NO_RUN = "is no file that simulate, bench or compare has written with --json"


def read_run(path: Path) -> Mapping[str, Any]:
    """Raises OptionNotUsable: the file cannot be read, or holds something else."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionNotUsable(
            option="RUN.json", value=path, remedy=f"cannot be read: {error.strerror or error}; {_ASK}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionNotUsable(option="RUN.json", value=path, remedy=f"{NO_RUN}: {error}") from error
    if not isinstance(run, dict) or run.keys().isdisjoint({"deployments", "orderings", "figures", "total"}):
        raise OptionNotUsable(option="RUN.json", value=path, remedy=NO_RUN)
    return run
