"""The leases given out, with versions that only grow."""

from dataclasses import replace

from pdmux_actor.lease import Lease, ModelAssignment, UnitReport


class LeaseBook:
    """`first_version` must exceed the versions of any control loop that led the same units before: a unit ignores
    leases that are older than the newest it has seen.
    """

    def __init__(self, *, stream_token: str, first_version: int) -> None:
        self._stream_token = stream_token
        self._version = first_version
        self._leases: dict[str, Lease] = {}
        self._weights_since: dict[str, dict[str, int]] = {}  # versions, by unit and model

    def current(self, unit_id: str) -> Lease | None:
        return self._leases.get(unit_id)

    def has_dropped(self, unit_id: str, model: str) -> bool:
        """The unit was told to let it go; what it last reported may be older than that."""
        lease = self._leases.get(unit_id)
        return lease is not None and all(a.model != model for a in lease.models)

    def has_taken(self, report: UnitReport, wanted: ModelAssignment) -> bool:
        """Says whether what a unit reports of a model is said of the weights that are wanted now: it has been leased
        them, and knows. So it is of a model that leaves, and of what another control loop has leased it.
        """
        lease = self._leases.get(report.unit_id)
        leased = None if lease is None else next((a for a in lease.models if a.model == wanted.model), None)
        if leased is None:
            return True
        since = self._weights_since[report.unit_id][wanted.model]
        return _name_the_same(leased, wanted) and report.lease_version >= since

    def renew(
        self,
        report: UnitReport,
        models: tuple[ModelAssignment, ...],
        policy: str,
        asleep: tuple[ModelAssignment, ...] = (),
        pool_blocks: int | None = None,
    ) -> Lease:
        """The same lease again while nothing in it changes and the unit has seen nothing newer."""
        old = self._leases.get(report.unit_id)
        if (
            old is not None
            and (old.models, old.policy, old.asleep) == (models, policy, asleep)
            and old.pool_blocks == pool_blocks
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
        )
        self._leases[report.unit_id] = lease
        self._note_weights(report, old, lease)
        return lease

    def _note_weights(self, report: UnitReport, old: Lease | None, lease: Lease) -> None:
        before = {} if old is None else {a.model: a for a in old.models}
        since = self._weights_since.get(report.unit_id, {})
        first = report.lease_version if old is None else lease.version
        self._weights_since[report.unit_id] = {
            a.model: since[a.model] if a.model in before and _name_the_same(before[a.model], a) else first
            for a in lease.models
        }

    def forget(self, unit_id: str) -> None:
        self._leases.pop(unit_id, None)
        self._weights_since.pop(unit_id, None)


def _name_the_same(one: ModelAssignment, other: ModelAssignment) -> bool:
    """Of two assignments of a model, whether both are served by the same weights."""
    return replace(one, quota_blocks=other.quota_blocks, slo=other.slo) == other
