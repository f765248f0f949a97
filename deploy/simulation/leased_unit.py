"""A unit whose models the control loop changes while it runs: what `serving.lease_follower` does, in virtual time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from deploy.simulation.engine import EngineDesign, OnStretch, OnTokens, SimulatedEngine
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.units import QuietUntil, UnitIdentity, heartbeat, pass_stretch_on
from pdmux_actor.lease import Lease, ModelPhase, ModelStatus, SleepingWeights, UnitReport
from pdmux_actor.messages import GenerateRequest, LoadReport, TokenEvent
from pdmux_actor.model_info import ModelInfo, longest_sequence_tokens
from pdmux_actor.scheduling.events import AttachModel, RemoveModel, SetPolicy, SetQuotas

DRAIN_TIMEOUT_S = 30.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadableModel:
    """Describes a model and how long the unit takes from the order to its first request: `load_s` from disk, `wake_s`
    from host memory, which takes as long the other way.
    """

    info: ModelInfo
    load_s: float
    wake_s: float = 0.0

    @property
    def asleep(self) -> SleepingWeights:
        return SleepingWeights(model=self.info.model, host_bytes=self.info.spec.weight_bytes, wake_s=self.wake_s)


@dataclass(slots=True, eq=False)
class _Held:
    info: ModelInfo
    quota_blocks: int
    phase: ModelPhase = ModelPhase.LOADING
    open_requests: int = 0
    drain: int = 0  # counts its drains
    is_leaving: bool = False


class LeasedUnit:
    """Loads are done one at a time; a model leaves when its requests have ended, at the latest after
    `DRAIN_TIMEOUT_S` or what the lease says: those that are left then end with an error and go on elsewhere.
    """

    def __init__(
        self,
        identity: UnitIdentity,
        design: EngineDesign,
        loadable: Mapping[str, LoadableModel],
        agenda: EventQueue,
        on_tokens: OnTokens,
    ) -> None:
        """It starts with the models of its design."""
        self.identity = identity
        self.design = design
        self.is_stale = True
        self.has_died = False  # and the next one, which will be this object, has no lease yet
        self.loadable = loadable
        self._agenda = agenda
        self._on_tokens = on_tokens
        self._engine = SimulatedEngine(design, agenda, self._pass_on)
        self._held = {
            m.info.model: _Held(info=m.info, phase=ModelPhase.READY, quota_blocks=m.quota_blocks) for m in design.models
        }
        self._model_of: dict[str, str] = {}
        self._wanted = {m.info.model: m.quota_blocks for m in design.models}
        self._policy = design.policy
        self._version = 0
        self._loading: str | None = None
        self._may_sleep: frozenset[str] = frozenset()
        self._finish_s: Mapping[str, float] = {}
        self._asleep: set[str] = set()
        self._load: LoadReport | None = None

    def let_run_ahead(self, quiet_until_s: QuietUntil, on_stretch: OnStretch) -> None:
        """Does what `SimulatedEngine.let_run_ahead` does. Requests come for models that it holds only; what changes
        those is an action on the agenda, and not one of a unit's own.
        """
        self._engine.let_run_ahead(
            partial(quiet_until_s, self._held.keys()), partial(pass_stretch_on, self, on_stretch)
        )

    def die(self) -> int:
        """Loses all that it holds, as its node is gone; returns how many requests go on elsewhere for it."""
        self.has_died = True
        cut = sum(held.open_requests for held in self._held.values())
        self._wanted, self._may_sleep = {}, frozenset()
        self._asleep.clear()
        for model, held in tuple(self._held.items()):
            if held.phase is ModelPhase.LOADING and model != self._loading:
                del self._held[model]
            elif held.phase is not ModelPhase.LOADING and not held.is_leaving:
                held.phase = ModelPhase.DRAINING
                self._leave(held)
        return cut

    # ---- requests ----

    def submit(self, request: GenerateRequest) -> bool:
        if not self.is_ready(request.model):
            return False
        self.is_stale = True
        self._held[request.model].open_requests += 1
        self._model_of[request.request_id] = request.model
        self._engine.submit(request)
        return True

    def is_ready(self, model: str) -> bool:
        held = self._held.get(model)
        return held is not None and held.phase is ModelPhase.READY

    def longest_tokens(self, model: str) -> int:
        """Returns the longest sequence that fits with the whole pool for its quota."""
        return longest_sequence_tokens(self.loadable[model].info, self.design.total_blocks)

    def load_report(self) -> LoadReport:
        return self._engine.load_report()

    def _pass_on(self, events: Sequence[TokenEvent]) -> None:
        self.is_stale = True
        for event in events:
            if event.finish is not None:
                held = self._held[self._model_of.pop(event.request_id)]
                held.open_requests -= 1
                if held.phase is ModelPhase.DRAINING and not held.open_requests:
                    self._agenda.at(self._agenda.clock.now_s, self._leaving(held, must_be_empty=True))
        self._on_tokens(events)

    # ---- leases ----

    def heartbeat(self) -> UnitReport:
        if self.is_stale or self._load is None:
            self.is_stale = False
            self._load = self._engine.load_report()
        models = tuple(_status(held) for held in self._held.values())
        asleep = sorted(self._asleep - self._held.keys())
        models += tuple(ModelStatus(model=m, phase=ModelPhase.ASLEEP, asleep=self.loadable[m].asleep) for m in asleep)
        return heartbeat(self.identity, self.design, lease_version=self._version, models=models, load=self._load)

    def obey(self, lease: Lease) -> None:
        """Applies a lease that is newer than the last."""
        self.has_died = False
        if lease.version <= self._version:
            return
        self._version = lease.version
        self._wanted = {a.model: a.quota_blocks for a in lease.models}
        self._may_sleep, self._finish_s = frozenset(a.model for a in lease.asleep), lease.finish_s
        self._asleep &= self._may_sleep | self._wanted.keys()
        if lease.policy != self._policy:
            self._policy = lease.policy
            self._engine.tell(SetPolicy(lease.policy))
        self._set_quotas()
        for model, held in tuple(self._held.items()):
            if model in self._wanted:
                if held.phase is ModelPhase.DRAINING and not held.is_leaving:
                    held.phase = ModelPhase.READY
            elif held.phase is ModelPhase.READY:
                self._drain(held)
            elif held.phase is ModelPhase.LOADING and model != self._loading:
                del self._held[model]
        self._note_wanted()
        self._load_next()

    def _set_quotas(self) -> None:
        """Of all models that stay, changed or not: the engine has moved quota among them since the last lease."""
        quotas = {
            model: quota
            for model, quota in self._wanted.items()
            if model in self._held and self._held[model].phase is not ModelPhase.LOADING
        }
        for model, quota in quotas.items():
            self._held[model].quota_blocks = quota
        if quotas:
            self.is_stale = True
            self._engine.tell(SetQuotas(quotas))

    def _load_next(self) -> None:
        if self._loading is not None:
            return
        self._loading = next((m for m, held in self._held.items() if held.phase is ModelPhase.LOADING), None)
        if self._loading is not None:
            held, loadable = self._held[self._loading], self.loadable[self._loading]
            took_s = loadable.wake_s if self._loading in self._asleep else loadable.load_s
            self._agenda.at(self._agenda.clock.now_s + took_s, lambda: self._loaded(held))

    def _loaded(self, held: _Held) -> None:
        self._loading = None
        self.is_stale = True
        quota_blocks = self._wanted.get(held.info.model)
        self._asleep.discard(held.info.model)
        if quota_blocks is None:  # its lease has ended meanwhile
            del self._held[held.info.model]
        else:
            held.phase, held.quota_blocks = ModelPhase.READY, quota_blocks
            self._engine.tell(AttachModel(held.info, quota_blocks))
        self._load_next()

    def _drain(self, held: _Held) -> None:
        held.phase = ModelPhase.DRAINING
        held.drain += 1
        if not held.open_requests:
            self._leave(held)
        else:
            at_last_s = self._agenda.clock.now_s + self._finish_s.get(held.info.model, DRAIN_TIMEOUT_S)
            self._agenda.at(at_last_s, self._leaving(held, must_be_empty=False))

    def _leaving(self, held: _Held, *, must_be_empty: bool) -> Callable[[], None]:
        """Not for another drain than the one now begun: a lease may want the model back, and drain it again."""
        drain = held.drain

        def leave() -> None:
            is_due = held.phase is ModelPhase.DRAINING and held.drain == drain and not held.is_leaving
            if is_due and not (must_be_empty and held.open_requests):
                self._leave(held)

        return leave

    def _leave(self, held: _Held) -> None:
        """From here on it goes, even if a lease wants it back: it is loaded again then."""
        held.is_leaving = True
        self._engine.tell(RemoveModel(held.info.model))
        model = held.info.model
        if model in self._may_sleep and self._host_bytes_with(model) <= self.identity.host_memory_bytes:
            self._asleep.add(model)
            self._agenda.at(self._agenda.clock.now_s + self.loadable[model].wake_s, lambda: self._forget(held))
        else:
            self._forget(held)

    def _host_bytes_with(self, model: str) -> int:
        return sum(self.loadable[m].asleep.host_bytes for m in self._asleep | {model})

    def _forget(self, held: _Held) -> None:
        """Once nothing of it is on the lanes."""
        if self._engine.holds(held.info.model):
            self._agenda.at(self._agenda.clock.now_s + _POLL_S, lambda: self._forget(held))
            return
        del self._held[held.info.model]
        self.is_stale = True
        self._note_wanted()
        self._load_next()

    def _note_wanted(self) -> None:
        for model in self._wanted:
            if model not in self._held:
                self._held[model] = _Held(info=self.loadable[model].info, quota_blocks=self._wanted[model])


def _status(held: _Held) -> ModelStatus:
    is_loaded = held.phase is not ModelPhase.LOADING
    longest = longest_sequence_tokens(held.info, held.quota_blocks) if is_loaded else None
    return ModelStatus(model=held.info.model, phase=held.phase, max_model_len=longest)
