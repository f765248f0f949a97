"""The fleet as a console or `muxfleet top` follows it: all models and pools, and the units asked for.

docs/console.md has the schema. What it holds does not grow with the fleet's units beyond MAX_UNITS of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pdmux_actor.messages import NeighbourLoss

MAX_UNITS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReplica:
    """A model on a unit. `share_loaded` is of a model that loads, from 0 to 1, in `stage`. Of its KV blocks in use
    `own_blocks` are within its quota and `borrowed_blocks` beyond it; `lent_blocks` of its quota are used by others:
    what a unit's models borrow, shared among the lenders as their idle quotas are. Shares are of the last seconds;
    None: nothing was due. `ttft_lost_s` and `tbt_lost_s` are what a first token and a gap lost to others on average,
    `lost_to` what all of
    them have lost to each neighbour.
    """

    model: str
    phase: str
    stage: str = ""
    share_loaded: float | None = None
    weight_bytes: int = 0
    quota_blocks: int = 0
    own_blocks: int = 0
    borrowed_blocks: int = 0
    lent_blocks: int = 0
    cached_blocks: int = 0
    running: int = 0
    waiting: int = 0
    in_time: float | None = None
    tokens_per_s: float = 0.0
    ttft_lost_s: float | None = None
    tbt_lost_s: float | None = None
    lost_to: tuple[NeighbourLoss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveUnit:
    """`state` is ok, silent, leaving, cordoned, draining, drained or out; `note` says more. Bubbles are shares of the
    last seconds.
    """

    unit: str
    pool: str
    node: str
    state: str
    silent_s: float
    memory_bytes: int
    block_bytes: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    prefill_sms: int
    decode_sms: int
    prefill_bubble_share: float
    decode_bubble_share: float
    guard_cells_moved: int
    note: str
    models: tuple[LiveReplica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """All replicas of a model. `waiting` requests have no first token yet, wherever they are; of them `held` wait
    because no unit has the model. `in_time` is the share of those that ended in the last minute while somebody looked,
    shed ones included; None: none has. `token_share` is of the tokens that all models generate now; None: nobody asks
    for any. `suffers` and `why`: whether a person should look, and what the figures say.
    """

    model: str
    state: str
    share_loaded: float | None
    ttft_s: float | None
    tbt_s: float | None
    rate_per_s: float
    waiting: int
    held: int
    oldest_wait_s: float
    running: int
    in_time: float | None
    tokens_per_s: float
    token_share: float | None
    used_blocks: int
    quota_blocks: int
    units: int
    asleep_on: int
    ttft_lost_s: float | None
    tbt_lost_s: float | None
    neighbour: str
    suffers: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePool:
    """Sums of a pool's units. `waiting` counts sequences that wait on units; `strained` units have some."""

    pool: str
    nodes: int
    units: int
    silent: int
    strained: int
    running: int
    waiting: int
    used_blocks: int
    total_blocks: int
    prefill_sms: int
    decode_sms: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDecision:
    """Holds what the control loop decided, `at_s` seconds since 1970; `moves` are its steps in words."""

    at_s: int
    kind: str
    reason: str
    moves: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFleet:
    """`units`: those that match what was asked for, at most MAX_UNITS of the `matching`, those in trouble first.
    `decisions`: newest first. `jain_index` is of the models' shares of requests in time: 1 where all are served equally
    well, low where some are late and others are not; None: no request has ended.
    """

    policy: str
    num_units: int
    jain_index: float | None
    models: tuple[LiveModel, ...]
    pools: tuple[LivePool, ...]
    units: tuple[LiveUnit, ...]
    matching: int
    decisions: tuple[LiveDecision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSelection:
    """Says which units to tell of: of that pool, with that model, with that text in their id or node; "": any."""

    pool: str = ""
    model: str = ""
    find: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSample:
    """The fleet at a moment. By model (share in time, waiting, tokens per second), by unit (SMs of prefill, of decode);
    of a large fleet by pool.
    """

    at_s: float
    models: Mapping[str, tuple[float | None, int, float]]
    sms: Mapping[str, tuple[int, int]]
