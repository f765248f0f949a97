"""Reads the blocks that an interrupted run left in its file, if it was asked for the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer_systems.blocks import Block


def earlier_blocks(path: Path | None, checkpoint: str, plan: Mapping[str, Any]) -> tuple[list[Block], float | None]:
    """Reads blocks and the target of a gap in seconds; none where there is no file. Raises SystemExit where the file
    holds those of another checkpoint or `plan`: they would stand beside what is measured now as if they were like it.
    """
    if path is None or not path.exists():
        return [], None
    report = json.loads(path.read_text(encoding="utf-8"))
    theirs = {"checkpoint": report.get("checkpoint", "random-100m")} | report["plan"]
    ours = {"checkpoint": checkpoint} | json.loads(json.dumps(plan))
    others = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    if others:
        differ = "; ".join(f"{name} {theirs[name]} and not {ours[name]}" for name in others)
        raise SystemExit(f"--json {path}: its blocks were asked for {differ}. Ask for the same, or name another file")
    return [Block(**row) for row in report["rows"]], report["tbt_target_s"]
