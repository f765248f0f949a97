"""Accounts for the time that a model's requests lose to the other models of their unit."""

from collections.abc import Collection, Mapping, Sequence

from pdmux_actor.messages import NeighbourLoss
from pdmux_actor.scheduling.launch import Lane, LaunchCompletion, MixedStep, PrefillSlice, lane_number
from pdmux_actor.scheduling.launches_in_flight import LaunchInFlight
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.unit_parts import UnitParts


class NeighbourSlowdown:
    """Sums seconds over requests, by model and neighbour, apart for first tokens (`ttft_s`) and later ones (`tbt_s`).

    Two things cost a request time. It *waits* while a neighbour has the SMs that it needs: a prompt while a neighbour
    prefills, or decodes on all SMs; a running sequence while neighbours have the decode lanes, or one prefills on all
    SMs. And its own launch *runs longer* beside others than it would alone on the whole device:

        lost = max(0, measured - alone) * requests * time beside the neighbour / time beside anybody

    where `alone` is what is predicted on all SMs and `requests` are those in the launch, and behind a prefill the
    model's other prompts. What a model's own requests cost one another is no loss. Call `advance` before anything
    changes, `land` before the result of a launch is applied.
    """

    def __init__(self, parts: UnitParts) -> None:
        self._queues = parts.queues
        self._lanes = parts.lanes
        self._predictor = parts.predictor
        self._ttft_s: dict[tuple[str, str], float] = {}
        self._tbt_s: dict[tuple[str, str], float] = {}
        self._beside_s: dict[int, dict[str, float]] = {}  # by lane number: how long its launch had whom beside it
        self._known_until_s = 0.0

    def advance(self, now_s: float) -> None:
        """Accounts for the time since the last call, in which nothing changed."""
        passed_s = now_s - self._known_until_s
        if passed_s <= 0.0 or len(self._queues) < 2:
            return
        self._known_until_s = now_s
        flights = self._lanes.flights()
        if not flights:
            return
        prefill = flights[0].launch.model if flights[0].is_prefill else None
        decodes = [f.launch.model for f in flights if not f.is_prefill]
        keeps_prompts = [prefill] if prefill is not None else decodes
        if prefill is None and self._lanes.sms_left(Lane.DECODE) > 0:
            keeps_prompts = []  # nobody: memory or the policy does
        keeps_running = decodes
        if not decodes and self._lanes.sms_left(Lane.PREFILL) == 0:
            keeps_running = [prefill] if prefill is not None else []
        for model, queue in self._queues.items():
            if keeps_prompts and model not in keeps_prompts and (prompts := _prompts(queue)):
                _share(self._ttft_s, model, keeps_prompts, prompts * passed_s)
            if queue.running and keeps_running and model not in keeps_running:
                _share(self._tbt_s, model, keeps_running, len(queue.running) * passed_s)
        if len(flights) > 1:
            self._note_company(flights, passed_s)

    def land(self, flight: LaunchInFlight, done: LaunchCompletion) -> None:
        """Accounts for a launch that has ended."""
        if len(self._queues) < 2:
            return
        beside_s = self._beside_s.pop(lane_number(flight.launch), None)
        model = flight.launch.model
        queue = self._queues[model]
        if beside_s is None or done.error is not None or all(name == model for name in beside_s):
            return
        alone_s = self._predictor.alone_s(queue.info.spec, flight, self._lanes.total_sms)
        lost_s = done.finished_s - done.started_s - alone_s
        if lost_s <= 0.0:
            return
        launch, company_s = flight.launch, sum(beside_s.values())
        prompts = _prompts(queue) if isinstance(launch, PrefillSlice | MixedStep) else 0
        running = 0 if isinstance(launch, PrefillSlice) else len(launch.sequences)
        for neighbour, together_s in beside_s.items():
            if neighbour != model:
                part_s = lost_s * together_s / company_s
                _share(self._ttft_s, model, [neighbour], prompts * part_s)
                _share(self._tbt_s, model, [neighbour], running * part_s)

    def losses(self, models: Sequence[str]) -> Mapping[str, tuple[NeighbourLoss, ...]]:
        """Returns the totals of each of a unit's models, one for each other of them, in their order."""
        return {
            model: tuple(
                NeighbourLoss(
                    neighbour=other,
                    ttft_s=self._ttft_s.get((model, other), 0.0),
                    tbt_s=self._tbt_s.get((model, other), 0.0),
                )
                for other in models
                if other != model
            )
            for model in models
        }

    def forget(self, model: str) -> None:
        for lost_s in (self._ttft_s, self._tbt_s):
            for pair in [pair for pair in lost_s if model in pair]:
                del lost_s[pair]

    def _note_company(self, flights: Sequence[LaunchInFlight], passed_s: float) -> None:
        for flight in flights:
            beside_s = self._beside_s.setdefault(lane_number(flight.launch), {})
            for other in flights:
                if other is not flight:
                    name = other.launch.model
                    beside_s[name] = beside_s.get(name, 0.0) + passed_s


def _prompts(queue: ModelQueue) -> int:
    """Counts requests without a first token: that of a prefill which is held up holds up those behind it."""
    return len(queue.waiting) + len(queue.partial) + queue.num_prefilling


def _share(total_s: dict[tuple[str, str], float], model: str, among: Collection[str], lost_s: float) -> None:
    """Adds `lost_s`, in equal parts for each of `among`."""
    part_s = lost_s / len(among)
    for neighbour in among:
        total_s[model, neighbour] = total_s.get((model, neighbour), 0.0) + part_s
