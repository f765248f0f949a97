"""Defines the base of all sections of the fleet file, and the smaller ones."""

from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, PositiveFloat, PositiveInt

from deploy.fleet_file.size_types import Size
from pdmux_actor.scheduling.settings import SchedulerSettings

# One of 16 small models keeps up with so many as with 8 on one lane (benchmarks/many_models.py).
_DECODE_LANES = 4


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class SchedulerSection(Section):
    """Holds what operators set of a unit's scheduler: keys of `engine`, and arguments of the units' application."""

    max_batch_tokens: Annotated[int, Field(ge=1, le=2**20)] = 2048
    """New tokens of one prefill batch."""
    max_running_sequences: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Sequences of one model that hold KV at once."""
    decode_lanes: Annotated[int, Field(ge=1, le=16)] | None = None
    """Decode steps of different models that a unit may run at once, each on SMs (cores) of its own, where that is
    predicted to be faster. Default: 4. Green contexts for it have not been run on a GPU yet."""

    def scheduler_settings(self, device: str, *, early_steps: bool = False) -> SchedulerSettings:
        """Says what they are on such a device. All memory of a GPU is planned, with room for the activations of a
        batch, so that no longer chunk may run there.
        """
        return SchedulerSettings(
            max_batch_tokens=self.max_batch_tokens,
            longest_chunk_tokens=self.max_batch_tokens if device == "cuda" else None,
            max_running_sequences=self.max_running_sequences,
            decode_lanes=self.decode_lanes or _DECODE_LANES,
            early_steps=early_steps,
        )


class StateSection(Section):
    """Says where the control loop keeps what its restart must not lose: plan, demand, decisions, events."""

    store: Literal["file", "cluster"] = "file"
    """file: an SQLite file on the control loop's node. cluster: the Ray cluster's own store, which lies in Redis where
    the head has one and ends with the head otherwise; the chart's default."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Of the file NAME.sqlite3 (relative to this file). Default: ~/.local/state/muxfleet."""


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


class BatchSection(Section):
    """Says where `/v1/files` and `/v1/batches` keep what clients upload and what comes of it, and what bounds that."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """A folder (relative to this file), or any URL that fsspec knows, as in s3://bucket/batches, whose package (s3fs)
    is installed. Gateways on several nodes need one that all reach, each fleet one of its own. Default:
    ~/.local/state/muxfleet/NAME.batches, NAME being the fleet's."""
    max_file_bytes: Size = ByteSize(100 * 1024 * 1024)
    max_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Of one batch."""
    lines_at_once: PositiveInt = 32
    """Lines of all batches that one gateway replica works on; they wait for capacity that nothing else needs."""
    keep_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """Files are deleted so long after they were made, and batches after they ended; 0 keeps them until a client deletes
    them. A client can ask for less (`expires_after`)."""
    max_key_bytes: Size | None = None
    """Of all files of an API key, or of everyone where there are no keys; results of batches count, and are never
    refused. Default: no bound."""


_END_S = 10.0
_START_S = 30.0


class DrainSection(Section):
    """Says how long what goes may take: a unit that is replaced, a gateway, a node. The times of Serve, Ray and
    Kubernetes follow from these.
    """

    move_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """A unit that shall go serves on for so long at most, while its models are loaded on others."""
    finish_s: Annotated[float, Field(ge=0, le=3600)] = 50.0
    """Then it opens no stream any more, and those that are open have so long to finish; what is left goes on elsewhere.
    Gateways take as long."""

    @property
    def unit_s(self) -> float:
        """Returns when Serve ends a unit that it has told to go."""
        return self.move_s + self.finish_s + _END_S

    @property
    def gateway_s(self) -> float:
        return self.finish_s + _END_S

    @property
    def node_s(self) -> float:
        """Returns how long Ray keeps a node that shall go. Serve tells a replica to go when no more than its own
        time is left; before that its successor has time to start elsewhere.
        """
        return self.unit_s + _START_S

    @property
    def pod_s(self) -> float:
        """Returns when Kubernetes kills the node's pod."""
        return self.node_s + _END_S
