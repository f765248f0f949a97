"""Knows which units there are, by their heartbeats."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from deploy.control.control_rules import ControlTiming
from deploy.control.fleet_costs import FleetCosts
from pdmux_actor.lease import UnitReport
from placement.plan import UnitCapacity
from profiler.specs import DeviceSpec

_BLIND_FROM = 3  # units; of fewer, losing most is what it looks like


@dataclass(slots=True, eq=False)
class KnownUnit:
    """`device` is what its pool's profile, a table or the unit itself says of its GPU."""

    report: UnitReport
    heard_s: float
    joined_s: float
    device: DeviceSpec | None
    pool_blocks: int | None = None  # of a pool without a size of its own, once planned

    @property
    def unit_id(self) -> str:
        return self.report.unit_id

    @property
    def capacity(self) -> UnitCapacity:
        report, blocks = self.report, self.report.total_blocks or self.pool_blocks
        return UnitCapacity(
            unit_id=report.unit_id,
            num_gpus=report.num_gpus,
            memory_bytes=report.memory_bytes,
            block_bytes=report.block_bytes,
            total_blocks=report.memory_bytes // report.block_bytes if blocks is None else blocks,
            sizes_pool=report.sizes_pool and blocks is None,
            pool=report.pool,
            node=report.node,
            max_models=report.max_models,
            launch_limits=report.launch_limits,
            device=self.device,
            asleep={s.model: s.asleep.wake_s for s in report.models if s.asleep is not None},
            role=report.role,
            native_on=report.native_on,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A unit that is gone. `died`: it was not asked to go."""

    report: UnitReport
    died: bool


class UnitRegistry:
    def __init__(self, timing: ControlTiming) -> None:
        self._timing = timing
        self._units: dict[str, KnownUnit] = {}
        self._expected: Mapping[str, int] = {}
        self._heard_pools: set[str] = set()
        self.most_units: Mapping[str, int] = {}
        """Units of each pool that may grow beyond what is expected."""
        self.num_changes = 0
        """Counts reports that told something else than the one before, and units that went."""
        self._costs = FleetCosts()
        self._is_blind = False
        self._went_s = float("-inf")

    def expect(self, expected: Mapping[str, int], costs: FleetCosts) -> None:
        """Units of each pool once the fleet is up."""
        self._heard_pools &= self._expected.keys() & expected.keys()
        self._expected, self._costs = dict(expected), costs
        for unit in self._units.values():
            unit.device = costs.device_of(unit.report)

    def __iter__(self) -> Iterator[KnownUnit]:
        return iter(self._units.values())

    def __len__(self) -> int:
        return len(self._units)

    def get(self, unit_id: str) -> KnownUnit | None:
        return self._units.get(unit_id)

    def capacity_of(self, unit_id: str) -> UnitCapacity:
        return self._units[unit_id].capacity

    def pool_blocks(self, unit_id: str) -> int | None:
        """Returns what the unit's lease says: None where the pool has a size of its own, or is not planned yet."""
        unit = self._units.get(unit_id)
        if unit is None or not unit.report.sizes_pool:
            return None
        return unit.pool_blocks or unit.report.total_blocks or None

    def staying(self) -> list[KnownUnit]:
        return [u for u in self._units.values() if not u.report.is_leaving]

    def hear(self, report: UnitReport, now_s: float) -> KnownUnit | None:
        """Takes in a heartbeat and returns what was known of the unit before; None for one that is new."""
        before = self._units.get(report.unit_id)
        joined_s = now_s if before is None else before.joined_s
        device = self._costs.device_of(report)
        if report.load is not None and report.load.steps:  # they are learned from once, and gateways need none
            report = replace(report, load=replace(report.load, steps=()))
        pool_blocks = None if before is None else before.pool_blocks
        self.num_changes += before is None or before.report != report
        if report.is_leaving and not (before is not None and before.report.is_leaving):
            self._went_s = now_s
        self._heard_pools.add(report.pool)
        self._units[report.unit_id] = KnownUnit(report, now_s, joined_s, device, pool_blocks)
        return before

    def size_pools(self, blocks: Mapping[str, int]) -> None:
        """Notes the sizes of units that have no pool yet; some may be gone."""
        for unit_id, size in blocks.items():
            if (unit := self._units.get(unit_id)) is not None and unit.capacity.sizes_pool:
                unit.pool_blocks = size

    def drop_silent(self, now_s: float) -> list[Lost]:
        """Fail static: most of several units silent at once is taken for a broken network at first."""
        said_goodbye = [
            i for i, u in self._units.items() if u.report.is_leaving and now_s - u.heard_s > self._timing.farewell_s
        ]
        gone = [self._drop(unit_id, now_s) for unit_id in said_goodbye]
        silent = {i: now_s - u.heard_s for i, u in self._units.items() if now_s - u.heard_s > self._timing.expiry_s}
        self._is_blind = len(self._units) >= _BLIND_FROM and 2 * len(silent) > len(self._units)
        patience_s = self._timing.blind_s if self._is_blind else self._timing.expiry_s
        return gone + [self._drop(unit_id, now_s) for unit_id, silent_s in silent.items() if silent_s > patience_s]

    def is_blind(self) -> bool:
        """Returns whether no unit was heard at the last look."""
        return self._is_blind

    def make_room(self, newcomer: UnitReport, now_s: float) -> Lost | None:
        """A restarted unit comes with a new id: the silent one whose place it takes need not run into its expiry."""
        peers = {
            i: u
            for i, u in self._units.items()
            if u.report.pool == newcomer.pool and not u.report.is_leaving and i != newcomer.unit_id
        }
        quiet = [i for i, u in peers.items() if now_s - u.heard_s > self._timing.quiet_s]
        place = newcomer.pool
        if not quiet or len(peers) < max(self._expected.get(place, 0), self.most_units.get(place, 0)):
            return None
        same_node = [i for i in quiet if peers[i].report.node == newcomer.node]
        return self._drop(min(same_node or quiet, key=lambda i: (peers[i].heard_s, i)), now_s)

    def is_complete(self) -> bool:
        present = Counter(u.report.pool for u in self.staying())
        return bool(present) and all(present[p] >= n for p, n in self._expected.items())

    def lacks_pools(self) -> bool:
        """Returns whether a pool's first unit is still to come. One whose units all went again is not waited for."""
        return any(number and pool not in self._heard_pools for pool, number in self._expected.items())

    def awaits_another(self, now_s: float) -> bool:
        """Says whether a unit that went may be about to be replaced."""
        return now_s - self._went_s < self._timing.replaced_s and not self.is_complete()

    def _drop(self, unit_id: str, now_s: float) -> Lost:
        report = self._units.pop(unit_id).report
        if not report.is_leaving:
            self._went_s = now_s
        self.num_changes += 1
        return Lost(report=report, died=not report.is_leaving or report.failure is not None)


def without_blocks(capacity: UnitCapacity, blocks: int) -> UnitCapacity:
    """The pool is part of the memory: what is left for weights stays the same."""
    taken = min(blocks, capacity.total_blocks)
    return replace(
        capacity,
        total_blocks=capacity.total_blocks - taken,
        memory_bytes=capacity.memory_bytes - taken * capacity.block_bytes,
    )
