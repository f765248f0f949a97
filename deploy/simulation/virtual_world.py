"""An executor in which units run ahead through what decides itself, and where models may slow each other down."""

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from pdmux_actor.executor.simulated import MADE_UP_TOKENS, ROUNDING_S, SimulatedExecutor, made_up_tokens
from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.launch import (
    ComputeLaunch,
    DecodeStep,
    DropPrefill,
    Launch,
    MixedStep,
    Repartition,
    lane_number,
)
from pdmux_actor.scheduling.sequence import TokenSequence


class StretchExecutor(SimulatedExecutor):
    """Implements stretch_run.VirtualWorld: its clock is told when a launch ends instead of being asked."""

    def ending_at(self, end_s: float) -> Sequence[ComputeLaunch]:
        passed_s, lanes = end_s - self._updated_s, self._lanes
        numbers = sorted(lanes) if len(lanes) > 1 else lanes
        works = [lanes[number] for number in numbers]
        return [work.launch for work in works if work.remaining_s - passed_s * work.rate <= ROUNDING_S]

    def follow(self, launch: DecodeStep | MixedStep, contexts: Sequence[int], now_s: float) -> float:
        assert len(self._lanes) == 1, "it is not alone"
        work = self._lanes[lane_number(launch)] = self._work(launch, now_s, contexts)
        self._updated_s, self._next_end_s = now_s, now_s + max(0.0, work.remaining_s)
        return self._next_end_s

    def exchange(
        self,
        ended: Sequence[ComputeLaunch],
        launches: Sequence[Launch],
        contexts: Mapping[str, Sequence[int]],
        now_s: float,
    ) -> None:
        self._progress(now_s)
        for over in ended:
            del self._lanes[lane_number(over)]
        for launch in launches:
            if isinstance(launch, Repartition):
                self._partition = launch
            elif not isinstance(launch, DropPrefill):
                lengths = contexts.get(launch.model) if isinstance(launch, DecodeStep) else None
                self._lanes[lane_number(launch)] = self._work(launch, now_s, lengths)
        self._changed()

    def next_tokens(self, sequence: TokenSequence, count: int) -> Sequence[SampledToken]:
        (tokens,) = made_up_tokens([sequence], count, self._infos[sequence.model].spec.vocab_size)
        return tokens

    def may_say(self, token_ids: Set[int]) -> bool:
        return any(0 <= token_id < len(MADE_UP_TOKENS) for token_id in token_ids)


Interference = Mapping[tuple[str, str], float]
"""By model and neighbour: how much longer its launches take while one of the neighbour's runs."""


class InterferingExecutor(StretchExecutor):
    """Is a device on which some models slow each other down more than others, as caches and memory buses have it."""

    interference: Interference = MappingProxyType({})

    def _changed(self) -> None:
        super()._changed()
        if self.interference and len(self._lanes) > 1:
            running = {number: work.launch.model for number, work in self._lanes.items()}
            for number, work in self._lanes.items():
                others = (model for other, model in running.items() if other != number)
                work.rate /= max(self.interference.get((work.launch.model, model), 1.0) for model in others)
