"""Makes an engine hold the models that the lease names: one task per model, none waits for another's load."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field

from pdmux_actor.backends.base import Engine
from pdmux_actor.errors import EngineDied, ModelLoadError
from pdmux_actor.lease import Lease, LoadProgress, LoadStage, ModelAssignment, ModelPhase, ModelStatus
from pdmux_actor.models.checkpoint import files_of
from pdmux_actor.models.load_progress import OnProgress
from pdmux_actor.serving.detokenizer import Vocabulary
from pdmux_actor.serving.frames import WeightsName

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Slept:
    """What a model was when it left the device. `files` are those its vocabulary was read from, with their times."""

    assignment: ModelAssignment
    vocabulary: Vocabulary
    files: frozenset[tuple[str, int]]


@dataclass(slots=True, eq=False)
class HeldModel:
    """A model that the unit loads, serves or lets go. The engine has its weights while `in_engine`, and may have them
    while `is_coming`.
    """

    assignment: ModelAssignment
    phase: ModelPhase = ModelPhase.LOADING
    in_engine: bool = False
    is_coming: bool = False
    vocabulary: Vocabulary | None = None
    files: frozenset[tuple[str, int]] = frozenset()
    max_model_len: int | None = None
    error: str | None = None
    download: LoadProgress | None = None
    open_streams: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # the lease, or the last stream ended

    @property
    def model(self) -> str:
        return self.assignment.model

    def status(self, reading: LoadProgress | None) -> ModelStatus:
        """`reading` is what the engine says."""
        return ModelStatus(
            model=self.model,
            phase=self.phase,
            max_model_len=self.max_model_len,
            error=self.error,
            base=self.assignment.base,
            origin=self.assignment.origin,
            progress=self.download or reading if self.phase is ModelPhase.LOADING else None,
        )

    def note_download(self, done_bytes: int, total_bytes: int) -> None:
        """May be called on any thread."""
        self.download = LoadProgress(stage=LoadStage.DOWNLOADING, done_bytes=done_bytes, total_bytes=total_bytes)


class LeaseFollower:
    """A model that the lease no longer names, or names with other weights, takes no new streams from then on; it leaves
    the engine when its streams have ended, at the latest after `drain_timeout_s` or what the lease says: into host
    memory where the lease says so. The lease names what has room beside these. A load that fails is tried again when
    they are gone, then with growing pauses. A download goes on when the lease no longer names the model, and nothing
    of it is loaded then. The first load finds the KV pool sized as the lease says. An adapter comes
    after its base, and leaves before it.
    """

    def __init__(
        self,
        engine: Engine,
        load_vocabulary: Callable[[ModelAssignment, OnProgress], Vocabulary],
        *,
        drain_timeout_s: float,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self.lease_version = 0
        self.pool_blocks: int | None = None  # what the engine made of the size that a lease named
        self._wanted_blocks: int | None = None
        self._asked_blocks: int | None = None
        self._resizing = asyncio.Lock()
        self._loads = 0  # models in the engine, or on their way
        self.failure: BaseException | None = None  # a bug of ours: the unit is of no use any more
        self._engine = engine
        self._load_vocabulary = load_vocabulary
        self._drain_timeout_s = drain_timeout_s
        self._first_retry_s = first_retry_s
        self._policy: str | None = None
        self._wanted: dict[str, ModelAssignment] = {}
        self._names: dict[str, tuple[str | None, ...]] = {}  # of their weights
        self._held: dict[str, HeldModel] = {}
        self._may_sleep: dict[str, ModelAssignment] = {}
        self._finish_s: Mapping[str, float] = {}
        self._slept: dict[str, _Slept] = {}
        self._is_news = asyncio.Event()
        self._none_leaving = asyncio.Event()
        self._none_leaving.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def apply(self, lease: Lease) -> bool:
        """Returns at once. False for a lease that is not newer than the last."""
        if lease.version <= self.lease_version:
            return False
        self.lease_version = lease.version
        self._wanted = {assignment.model: assignment for assignment in lease.models}
        origins = {assignment.model: assignment.origin for assignment in lease.models}
        self._names = {a.model: a.origin.name(origins.get(a.base or "")) for a in lease.models}
        self._may_sleep = {assignment.model: assignment for assignment in lease.asleep}
        self._wanted_blocks, self._finish_s = lease.pool_blocks, lease.finish_s
        for held in self._held.values():
            if held.in_engine:
                held.phase = ModelPhase.READY if self._keeps(held) else ModelPhase.DRAINING
            held.changed.set()
        for model, assignment in self._wanted.items():
            if model not in self._held:
                held = self._held[model] = HeldModel(assignment)
                self._spawn(self._follow(held), held.model)
        self._note_leaving()
        self._spawn(self._forget_sleepers())
        self._spawn(self._tune(lease))
        return True

    def ready(self, model: str) -> HeldModel | None:
        held = self._held.get(model)
        return held if held is not None and held.phase is ModelPhase.READY else None

    def has_weights(self, model: str, name: tuple[str | None, ...]) -> bool:
        """Says whether the weights of a model that is ready are those that a request was made for."""
        return self._names.get(model) == name

    def ready_weights(self, model: str) -> WeightsName | None:
        """Names the weights of a model that is ready, with those of its base."""
        if (held := self.ready(model)) is None:
            return None
        base = None if held.assignment.base is None else self._held.get(held.assignment.base)
        return _weights(held.assignment) + (() if base is None else _weights(base.assignment))

    def statuses(self) -> tuple[ModelStatus, ...]:
        asleep = [weights for model, weights in self._engine.asleep().items() if model not in self._held]
        return (
            *(held.status(self._engine.load_progress(held.model)) for held in self._held.values()),
            *(ModelStatus(model=w.model, phase=ModelPhase.ASLEEP, asleep=w) for w in asleep),
        )

    async def news_within(self, timeout_s: float) -> None:
        """Returns once a model is ready or gone, which somebody may wait for; at the latest after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_news.wait()
        except TimeoutError:
            pass  # nothing is new
        self._is_news.clear()

    def stream_ended(self, held: HeldModel) -> None:
        held.open_streams -= 1
        if held.open_streams == 0:
            held.changed.set()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # no deadline: they were cancelled and await nothing that shields itself
            await asyncio.wait(self._tasks)

    # ---- one model ----

    async def _follow(self, held: HeldModel) -> None:
        retry_s = self._first_retry_s
        while True:
            held.changed.clear()
            wanted = self._wanted.get(held.model)
            if held.in_engine and not self._keeps(held):
                await self._let_go(held)
            elif wanted is None:
                del self._held[held.model]
                self._is_news.set()
                await self._forget_sleepers()  # the lease may have changed its mind about this one meanwhile
                return
            elif held.in_engine:
                held.assignment = wanted
                # no deadline: until the lease says something else
                await held.changed.wait()
            elif not self._has_base(wanted):
                held.assignment = wanted
                # no deadline: its base comes, or fails and is tried again, or the lease says something else
                await held.changed.wait()
            elif await self._load(held, wanted):
                retry_s = self._first_retry_s
            elif not self._none_leaving.is_set():  # these may have what it lacked
                held.phase, held.error = ModelPhase.LOADING, None
                # no deadline: models leave within drain_timeout_s and engine.watch.load_s
                await self._none_leaving.wait()
            else:
                await self._until_changed_weights(held, retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _load(self, held: HeldModel, wanted: ModelAssignment) -> bool:
        """Returns False where it does not load."""
        held.assignment, held.phase, held.error = wanted, ModelPhase.LOADING, None
        try:
            held.vocabulary, held.files = await asyncio.to_thread(self._vocabulary_of, wanted, held.note_download)
            held.download = None
            if not self._keeps(held):  # others have its place by now; what was downloaded stays on the disk
                return True
            held.is_coming = True
            held.max_model_len = await self._add_to_engine(wanted)
        except ModelLoadError as error:
            logger.warning("a model does not load", extra={"model": held.model, "reason": str(error)})
            held.phase, held.error, held.is_coming = ModelPhase.FAILED, str(error), False
            self._tell_family(held)
            return False
        held.in_engine, held.is_coming = True, False
        self._slept.pop(held.model, None)
        held.phase = ModelPhase.READY if self._keeps(held) else ModelPhase.DRAINING
        self._is_news.set()
        self._note_leaving()
        self._tell_family(held)
        newest = self._wanted.get(held.model)
        if wanted.base is not None:  # how long its base's sequences may be has changed, too
            await self._set_quotas(self._kept_quotas())
        elif newest is not None and newest.quota_blocks != wanted.quota_blocks:
            await self._set_quotas({held.model: newest.quota_blocks})
        return True

    async def _add_to_engine(self, wanted: ModelAssignment) -> int:
        """The first model finds the pool as large as the lease says. Raises ModelLoadError."""
        async with self._resizing:
            asked = self._wanted_blocks
            if asked is not None and not self._loads and asked != self._asked_blocks:
                self.pool_blocks = await self._engine.resize_pool(asked)
                self._asked_blocks = asked
            self._loads += 1
        try:
            return await self._engine.add_model(wanted)
        except ModelLoadError:
            self._loads -= 1
            raise

    async def _until_changed_weights(self, held: HeldModel, timeout_s: float) -> None:
        """A lease that changes other models, or this one's quota, is no reason to try again earlier."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._keeps(held):
                    await held.changed.wait()
                    held.changed.clear()
        except TimeoutError:
            pass  # the pause is over

    async def _let_go(self, held: HeldModel) -> None:
        """Returns early when the model is wanted again."""
        try:
            async with asyncio.timeout(min(self._drain_timeout_s, self._finish_s.get(held.model, math.inf))):
                while held.open_streams and not self._keeps(held):
                    await held.changed.wait()
                    held.changed.clear()
        except TimeoutError:
            told = {"model": held.model, "streams": held.open_streams}
            logger.warning("a model leaves with streams open", extra=told)
        if self._keeps(held):
            return
        while any((h.in_engine or h.is_coming) and h.assignment.base == held.model for h in self._held.values()):
            # no deadline: adapters come and leave as models do
            await held.changed.wait()
            held.changed.clear()
        if self._keeps(held):
            return
        # From here on the model goes even if a lease wants it back meanwhile: it is loaded again then.
        held.in_engine = False
        held.max_model_len = None
        sleeps = self._sleeps(held.assignment)
        if sleeps and held.vocabulary is not None:
            self._slept[held.model] = _Slept(held.assignment, held.vocabulary, held.files)
            await self._forget_sleepers()  # it may need their place
        await self._engine.remove_model(held.model, sleep=sleeps)
        self._loads -= 1
        if held.model not in self._engine.asleep():
            self._slept.pop(held.model, None)
        held.phase = ModelPhase.LOADING
        self._note_leaving()
        self._tell_family(held)

    def _vocabulary_of(
        self, wanted: ModelAssignment, on_download: OnProgress
    ) -> tuple[Vocabulary, frozenset[tuple[str, int]]]:
        """Of a model that wakes, and of an adapter's base, it is there already. On a thread."""
        if wanted.base is not None:
            base = self._held.get(wanted.base)
            if base is None or base.vocabulary is None:
                raise ModelLoadError(
                    model=wanted.model, reason=f"its base {wanted.base!r} has just left", remedy="it is tried again"
                )
            return base.vocabulary, files_of(wanted.source)
        files, slept = files_of(wanted.source), self._slept.get(wanted.model)
        if slept is not None and slept.files == files and _weights(slept.assignment) == _weights(wanted):
            return slept.vocabulary, files
        return self._load_vocabulary(wanted, on_download), files

    async def _forget_sleepers(self) -> None:
        """Those that the lease names no more, or with other weights."""
        for model in tuple(self._engine.asleep()):
            slept = self._slept.get(model)
            is_due = slept is None or not self._sleeps(slept.assignment)
            if is_due and model not in self._held and model not in self._wanted:
                self._slept.pop(model, None)
                await self._engine.remove_model(model)

    def _sleeps(self, assignment: ModelAssignment) -> bool:
        named = self._may_sleep.get(assignment.model)
        return named is not None and _weights(named) == _weights(assignment)

    def _keeps(self, held: HeldModel) -> bool:
        """The lease wants the weights that `held` was loaded from, and those of its base."""
        wanted = self._wanted.get(held.model)
        if wanted is None or _weights(wanted) != _weights(held.assignment):
            return False
        base = None if wanted.base is None else self._held.get(wanted.base)
        return base is None or not base.in_engine or self._keeps(base)

    def _has_base(self, wanted: ModelAssignment) -> bool:
        if wanted.base is None:
            return True
        base = self._held.get(wanted.base)
        return base is not None and base.in_engine and self._keeps(base)

    def _tell_family(self, held: HeldModel) -> None:
        """Its base, or its adapters, may have waited for it."""
        for other in self._held.values():
            if held.model == other.assignment.base or other.model == held.assignment.base:
                other.changed.set()

    def _note_leaving(self) -> None:
        if any(held.phase is ModelPhase.DRAINING for held in self._held.values()):
            self._none_leaving.clear()
        else:
            self._none_leaving.set()

    # ---- all models ----

    async def _tune(self, lease: Lease) -> None:
        if lease.policy != self._policy:
            self._policy = lease.policy
            await self._engine.set_policy(lease.policy)
        await self._set_quotas(self._kept_quotas())

    def _kept_quotas(self) -> Mapping[str, int]:
        kept = [held for held in self._held.values() if held.in_engine and self._keeps(held)]
        return {held.model: self._wanted[held.model].quota_blocks for held in kept}

    async def _set_quotas(self, quota_blocks: Mapping[str, int]) -> None:
        """A quota also bounds how long a sequence can get."""
        if not quota_blocks:
            return
        for model, max_model_len in (await self._engine.set_quotas(quota_blocks)).items():
            held = self._held.get(model)
            if held is not None and held.in_engine:
                held.max_model_len = max_model_len

    def _spawn(self, work: Coroutine[None, None, None], model: str = "") -> None:
        """`model` is empty for what concerns several."""
        task = asyncio.create_task(work, name=model)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, EngineDied):  # that one shows in the engine's events
            logger.error("following the lease failed", extra={"model": task.get_name()}, exc_info=error)
            self.failure = error


def _weights(assignment: ModelAssignment) -> WeightsName:
    described = assignment.source, assignment.revision, assignment.dtype, assignment.weights
    return *described, assignment.max_model_len, assignment.base
