"""The fleet file's `state`."""

from typing import Annotated, Literal

from pydantic import Field

from deploy.fleet_file.section import Section


class StateSection(Section):
    """Says where the control loop keeps what its restart must not lose: plan, demand, decisions, events."""

    store: Literal["file", "cluster"] = "file"
    """file: an SQLite file on the control loop's node. cluster: the Ray cluster's own store, which lies in Redis where
    the head has one and ends with the head otherwise; the chart's default."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Of the file NAME.sqlite3 (relative to this file). Default: ~/.local/state/muxfleet."""
