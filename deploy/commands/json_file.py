"""Writes what a command found for scripts."""

import json
from pathlib import Path

from deploy.errors import OutputNotWritable


def write_json(path: Path, data: object) -> None:
    """Raises OutputNotWritable."""
    try:
        path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(path=str(path), reason=error.strerror or str(error)) from error
