"""The leases given out, with versions that only grow."""

from collections.abc import Mapping
from types import MappingProxyType

from pdmux_actor.lease import Lease, ModelAssignment, ModelStatus, UnitReport


class LeaseBook:
    """`first_version` must exceed the versions of any control loop that led the same units before: a unit ignores
    leases that are older than the newest it has seen.
    """

    def __init__(self, *, stream_token: str, first_version: int) -> None:
        self._stream_token = stream_token
        self._version = first_version
        self._leases: dict[str, Lease] = {}

    def current(self, unit_id: str) -> Lease | None:
        return self._leases.get(unit_id)

    def has_dropped(self, unit_id: str, told: ModelStatus) -> bool:
        """The unit was told to let it go, or its weights; what it last reported may be older than that."""
        lease = self._leases.get(unit_id)
        if lease is None:
            return False
        leased = next((a for a in lease.models if a.model == told.model), None)
        return leased is None or (told.origin is not None and told.origin != leased.origin)

    def renew(
        self,
        report: UnitReport,
        models: tuple[ModelAssignment, ...],
        policy: str,
        asleep: tuple[ModelAssignment, ...] = (),
        pool_blocks: int | None = None,
        finish_s: Mapping[str, float] = MappingProxyType({}),
    ) -> Lease:
        """The same lease again while nothing in it changes and the unit has seen nothing newer."""
        old = self._leases.get(report.unit_id)
        if (
            old is not None
            and (old.models, old.policy, old.asleep) == (models, policy, asleep)
            and (old.pool_blocks, old.finish_s) == (pool_blocks, finish_s)
            and report.lease_version <= old.version
        ):
            return old
        self._version = max(self._version, report.lease_version) + 1
        lease = Lease(
            version=self._version,
            models=models,
            policy=policy,
            stream_token=self._stream_token,
            asleep=asleep,
            pool_blocks=pool_blocks,
            finish_s=dict(finish_s),
        )
        self._leases[report.unit_id] = lease
        return lease

    def forget(self, unit_id: str) -> None:
        self._leases.pop(unit_id, None)
