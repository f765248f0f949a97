"""The fleet file's `engine.watch`."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from deploy.fleet_file.section import Section


class WatchSection(Section):
    """Says when an engine of muxfleet's own counts as hung: its loop says nothing, a launch does not complete, or work
    waits and nothing is launched. SGLang has a watchdog of its own (args: {watchdog_timeout: 300}).
    """

    suspect_s: PositiveFloat = 3.0
    """After so long the unit is not ready, and its streams go on on other units that can serve them; without another
    they stay where they are."""
    kill_s: PositiveFloat = 10.0
    """After so long the engine is killed and its unit started again. Keep it below gateway.hold_s."""
    late_factor: Annotated[float, Field(ge=1)] = 20.0
    """A launch is late only after so many times what was predicted for it, which measurements correct as it runs."""
    late_max_s: PositiveFloat = 60.0
    """A launch is late at last when it takes so much longer than predicted. The first launches of a model, whose
    predictions are guesses, have this long."""
    load_s: PositiveFloat = 3600.0
    """Loading a model, download included, or removing one takes no longer; the engine is killed otherwise."""
