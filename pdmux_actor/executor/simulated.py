"""An executor whose launches take the time that a latency model says. No tensors, no torch.

Lanes that overlap slow each other down: every launch has remaining solo work, and while other lanes are busy it shrinks
by 1 / slowdown per second. Decodes of several models share the memory bandwidth (profiler/bandwidth_sharing.py) and the
one thread that launches them: what the host does for one, it does not do for another meanwhile. A prefill is slowed
more by several decodes than by one, in proportion to the bandwidth that they draw. Tokens are made up: deterministic
per sequence position, never an end-of-sequence token, so that a sequence ends at `max_tokens`, as a trace says. One
whose output has a form says the next best that follows it, and ends as soon as it may.
"""

import math
import time
from collections.abc import Sequence
from threading import Condition
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from pdmux_actor.executor.checkpoint_shape import read_shape
from pdmux_actor.executor.host_memory import check_host_room
from pdmux_actor.executor.made_up_outputs import made_up_embeddings
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.scheduling.launch import (
    PREFILL_LANE,
    ComputeLaunch,
    DecodeStep,
    DropPrefill,
    Launch,
    LaunchCompletion,
    MixedStep,
    PrefillSlice,
    Repartition,
    lane_number,
    sampling_sequences,
)
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.bandwidth_sharing import ReadsByModel, slowdown_beside
from profiler.latency import LatencyModel, overlapped_s
from profiler.specs import DeviceSpec, ModelSpec


class Clock(Protocol):
    """Time of a simulation: virtual (jumps) or real (sleeps)."""

    def now(self) -> float: ...

    def advance_to(self, time_s: float | None) -> bool:
        """Goes on to `time_s`, or without limit when None; False when woken before."""
        ...

    def wake(self) -> None: ...


class VirtualClock:
    """Jumps. Single-threaded, so without a time to go to it stays where it is: the simulation is over."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance_to(self, time_s: float | None) -> bool:
        if time_s is None:
            return False
        self._now_s = max(self._now_s, time_s)
        return True

    def wake(self) -> None:
        """Events of a virtual world come from its timetable."""


class RealClock:
    """Sleeps on a condition that `wake` notifies."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._woken = False

    def now(self) -> float:
        return time.perf_counter()

    def advance_to(self, time_s: float | None) -> bool:
        with self._condition:
            timeout_s = None if time_s is None else max(0.0, time_s - self.now())
            woken = self._condition.wait_for(lambda: self._woken, timeout_s)
            self._woken = False
            return not woken

    def wake(self) -> None:
        with self._condition:
            self._woken = True
            self._condition.notify()


class _Work(msgspec.Struct, gc=False):
    launch: ComputeLaunch
    started_s: float
    remaining_s: float  # of solo time
    step_s: float = 0.0  # of a decode alone, without the host
    rate: float = 1.0  # solo seconds of work done per second
    demand: float | None = None  # share of the bandwidth, of a decode that has had company
    contexts: Sequence[int] | None = None  # of a decode's sequences, where they are known


ROUNDING_S = 1e-9  # of a launch's rest, what rounding leaves
# To plan a step, launch its graph and read what was sampled: "less than 0.5 ms" (MuxWise §3.2.2, DuetServe §4.3).
GPU_HOST_S = 0.5e-3
MADE_UP_TOKENS = tuple((SampledToken(token_id=token_id),) for token_id in range(128))


class SimulatedExecutor:
    """Implements executor.base.HostingExecutor.

    `prefill_slowdown` and `decode_slowdown` are how much longer prefill and one decode take while both run;
    `host_s` is what the host adds to every launch (to plan, to launch, to read what was sampled).

    `device` is one of the GPUs when the unit is a tensor-parallel group: the group is `latency`'s to know.
    """

    memory_is_host = False

    def __init__(
        self,
        *,
        device: DeviceSpec,
        latency: LatencyModel,
        total_blocks: int,
        block_bytes: int,
        clock: Clock,
        prefill_slowdown: float = 1.1,
        decode_slowdown: float = 1.15,
        host_s: float = 0.0,
    ) -> None:
        self.device = device
        self.total_blocks = total_blocks
        self.block_bytes = block_bytes
        self.unpartitioned_reason: str | None = None
        self._latency = latency
        self._clock = clock
        self._prefill_slowdown, self._decode_slowdown = prefill_slowdown, decode_slowdown
        self._host_s = host_s
        self._infos: dict[str, ModelInfo] = {}
        self._asleep: dict[str, ModelInfo] = {}
        self._reads = ReadsByModel()
        self._lanes: dict[int, _Work] = {}  # by lane number
        self._host_until_s = float("-inf")  # it works for decodes until then
        self._partition = Repartition(prefill_sms=0, decode_sms=device.num_sms)
        self._updated_s = clock.now()
        self._next_end_s: float | None = None  # until a launch starts or ends

    def now(self) -> float:
        return self._clock.now()

    def resize_pool(self, total_blocks: int) -> int:
        self.total_blocks = total_blocks
        return total_blocks

    def load_model(self, source: ModelSource, *, on_progress: OnProgress = ignore_progress) -> ModelInfo:
        """Reads `config.json` only; no weights are needed to simulate."""
        spec = read_shape(source.model, source.source, source.dtype, source.weights)
        info = self._infos[source.model] = ModelInfo(
            model=source.model,
            spec=spec,
            geometry=KvGeometry.of(spec, self.block_bytes),
            eos_token_ids=frozenset({end} if (end := spec.vocab_size - 1) >= len(MADE_UP_TOKENS) else ()),
            max_model_len=spec.context_tokens(source.max_model_len),
        )
        return info

    def load_adapter(self, model: str, base: str, source: str, *, revision: str | None) -> None:
        """Reads nothing: what an adapter adds to a step is not modelled."""

    def attach_model(self, info: ModelInfo, row_table: npt.NDArray[np.int64]) -> None:
        self._infos[info.model] = info

    def detach_model(self, model: str) -> None:
        self._infos.pop(model, None)  # none of an adapter

    def sleep_model(self, model: str, most_bytes: int) -> int:
        info = self._infos[model]
        check_host_room(model, info.spec.weight_bytes, most_bytes)
        self._asleep[model] = info
        return info.spec.weight_bytes

    def wake_model(self, model: str) -> ModelInfo:
        info = self._infos[model] = self._asleep.pop(model)
        return info

    def forget_sleeper(self, model: str) -> None:
        del self._asleep[model]

    def submit(self, launch: Launch) -> None:
        if isinstance(launch, Repartition):
            assert launch.prefill_sms + launch.decode_sms <= self.device.num_sms, f"{launch} exceeds the device"
            self._partition = launch
        elif not isinstance(launch, DropPrefill):  # there are no hidden states to forget
            now_s, number = self._clock.now(), lane_number(launch)
            self._progress(now_s)
            assert number not in self._lanes
            self._lanes[number] = self._work(launch, now_s)
            self._changed()

    def _work(self, launch: ComputeLaunch, now_s: float, contexts: Sequence[int] | None = None) -> _Work:
        host_s = self._host_s
        if isinstance(launch, DecodeStep):
            host_s += max(0.0, self._host_until_s - now_s)
            self._host_until_s = now_s + host_s
        solo_s = self._solo_s(launch, contexts)
        step_s = solo_s / launch.steps if isinstance(launch, DecodeStep) else 0.0
        return _Work(launch, now_s, host_s + solo_s, step_s, contexts=contexts)

    def wait(self, deadline_s: float | None) -> Sequence[LaunchCompletion]:
        next_end_s = self.next_end_s()
        until_s = (
            next_end_s if deadline_s is None else deadline_s if next_end_s is None else min(next_end_s, deadline_s)
        )
        reached = self._clock.advance_to(until_s)
        now_s = self._clock.now()
        self._progress(now_s)
        if not reached and (next_end_s is None or now_s < next_end_s):
            return ()
        done = [self._complete(lane, now_s) for lane in sorted(self._lanes) if self._is_done(lane)]
        if done:
            self._changed()
        return done

    def wake(self) -> None:
        self._clock.wake()

    def close(self) -> None:
        self._lanes.clear()

    def next_end_s(self) -> float | None:
        """Returns when the first of the launches on the lanes ends if nothing else is submitted; None when all are
        idle.
        """
        if not self._lanes:
            return None
        if self._next_end_s is None:
            rest_s = [max(0.0, work.remaining_s) / work.rate for work in self._lanes.values()]
            self._next_end_s = self._updated_s + min(rest_s)
        return self._next_end_s

    @property
    def in_flight(self) -> int:
        """Launches on the lanes."""
        return len(self._lanes)

    def _changed(self) -> None:
        """A launch came or went: how fast the others get on."""
        self._next_end_s = None
        if len(self._lanes) < 2:
            for work in self._lanes.values():
                work.rate = 1.0
            return
        prefill = self._lanes.get(PREFILL_LANE)
        decodes = [work for number, work in self._lanes.items() if number != PREFILL_LANE]
        demands = [self._demand(work) for work in decodes] if len(decodes) > 1 else []
        drawn, beside_prefill = sum(demands), 1.0 if prefill is None else self._decode_slowdown
        if len(decodes) == 1:
            decodes[0].rate = 1 / beside_prefill
        for place, demand in enumerate(demands):
            decodes[place].rate = 1 / (beside_prefill * slowdown_beside(demand, drawn - demand))
        if prefill is not None:
            slowdown = self._prefill_slowdown if decodes else 1.0
            if drawn > 0:
                slowdown = 1 + (slowdown - 1) * max(1.0, min(1.0, drawn) / max(demands))
            prefill.rate = 1 / slowdown

    def _demand(self, work: _Work) -> float:
        if work.demand is None:
            launch, contexts = work.launch, work.contexts
            if contexts is None and isinstance(launch, DecodeStep):
                contexts = [len(s.token_ids) for s in launch.sequences]
            reads = self._reads.of(launch.model, self._infos[launch.model].spec)
            work.demand = reads.demand(self.device, contexts or (), work.step_s)
        return work.demand

    def _progress(self, now_s: float) -> None:
        elapsed_s = now_s - self._updated_s
        if elapsed_s > 0:
            for work in self._lanes.values():
                work.remaining_s -= elapsed_s * work.rate
            self._updated_s = now_s

    def _is_done(self, lane: int) -> bool:
        return self._lanes[lane].remaining_s <= ROUNDING_S

    def _complete(self, lane: int, now_s: float) -> LaunchCompletion:
        work = self._lanes.pop(lane)
        launch = work.launch
        spec = self._infos[launch.model].spec
        steps = launch.steps if isinstance(launch, DecodeStep) else 1
        sequences = sampling_sequences(launch, spec.num_layers)
        tokens = made_up_tokens(sequences, steps, spec.vocab_size)
        if [s for s in sequences if not s.is_plain]:
            tokens = tuple([_following(t, s) for t, s in zip(tokens, sequences, strict=True)])
            tokens = tuple([_with_logprobs(t, s, spec.vocab_size) for t, s in zip(tokens, sequences, strict=True)])
        embeds = not isinstance(launch, DecodeStep) and any(c.embedded_token is not None for c in launch.chunks)
        return LaunchCompletion(
            launch=launch,
            started_s=work.started_s,
            finished_s=now_s,
            tokens=tokens,
            prompt_logprobs=_made_up_prompts(launch, spec),
            embeddings=made_up_embeddings(launch, spec) if embeds else {},
        )

    def _solo_s(self, launch: ComputeLaunch, contexts: Sequence[int] | None) -> float:
        """Without the host."""
        spec = self._infos[launch.model].spec
        match launch:
            case DecodeStep(sequences=sequences, steps=steps, part=part):
                contexts, decode_sms = contexts or [len(s.token_ids) for s in sequences], self._partition.decode_sms
                assert part is None or part.end_sm <= decode_sms, f"{part} exceeds {self._partition}"
                return steps * self._latency.decode_s(spec, contexts, decode_sms if part is None else part.sms)
            case PrefillSlice(chunks=chunks, first_layer=first, last_layer=last):
                whole_s = self._latency.prefill_s(spec, [c.shape for c in chunks], self._partition.prefill_sms)
                return whole_s * (last - first) / spec.num_layers
            case MixedStep(chunks=chunks, sequences=sequences, nano_batches=nano_batches):
                contexts = contexts or [len(s.token_ids) for s in sequences]
                shapes, sms = [c.shape for c in chunks], self._partition.decode_sms
                return overlapped_s(self._latency, spec, shapes, contexts, sms, nano_batches=nano_batches)


def made_up_tokens(
    sequences: Sequence[TokenSequence], steps: int, vocab_size: int
) -> tuple[tuple[SampledToken, ...], ...]:
    """Each depends on the prompt's first token and the output position only: the same whatever the policy."""
    first, choices = _printable(vocab_size)
    starts = [31 * s.token_ids[0] + 17 * (len(s.token_ids) - s.num_prompt_tokens) for s in sequences]
    if steps == 1:
        return tuple([MADE_UP_TOKENS[start % choices + first] for start in starts])
    return tuple(
        [tuple([MADE_UP_TOKENS[(start + 17 * step) % choices + first][0] for step in range(steps)]) for start in starts]
    )


def made_up_output(first_prompt_token: int, count: int, vocab_size: int) -> tuple[int, ...]:
    """Returns the first tokens of the output of such a prompt."""
    first, choices = _printable(vocab_size)
    start = 31 * first_prompt_token
    return tuple([MADE_UP_TOKENS[(start + 17 * place) % choices + first][0].token_id for place in range(count)])


def _printable(vocab_size: int) -> tuple[int, int]:
    """Returns the first token that may be made up, and how many may."""
    printable = min(vocab_size, len(MADE_UP_TOKENS))
    return min(33, printable - 1), max(1, printable - 33)


def _made_up_prompts(launch: ComputeLaunch, spec: ModelSpec) -> dict[int, tuple[PromptLogprob, ...]]:
    """Of chunks that ask, when they are through all layers: each token was the most probable one."""
    if isinstance(launch, DecodeStep) or (isinstance(launch, PrefillSlice) and launch.last_layer < spec.num_layers):
        return {}
    asking = [(place, chunk) for place, chunk in enumerate(launch.chunks) if chunk.sequence.lacks_prompt_logprobs]
    made: dict[int, tuple[PromptLogprob, ...]] = {}
    for place, chunk in asking:
        sequence, behind = chunk.sequence, chunk.start + 1
        token_ids = sequence.token_ids[behind : min(behind + chunk.length, sequence.num_prompt_tokens)]
        likely = _likely(sequence.request.sampling.prompt_logprobs or 0, spec.vocab_size)
        made[place] = tuple(
            [PromptLogprob(t, -math.log(2), 1, _alternatives(t, likely, spec.vocab_size)) for t in token_ids]
        )
    return made


def _likely(wanted: int, vocab_size: int) -> list[float]:
    return [-(rank + 1) * math.log(2) for rank in range(min(wanted, vocab_size))]


def _alternatives(token_id: int, likely: Sequence[float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    return tuple([((token_id + rank) % vocab_size, logprob) for rank, logprob in enumerate(likely)])


def _following(tokens: tuple[SampledToken, ...], sequence: TokenSequence) -> tuple[SampledToken, ...]:
    """What the sequence's form makes of its one made-up token."""
    if sequence.constraint is None:
        return tokens
    (made_up,) = tokens
    return (SampledToken(sequence.constraint.simulated_token(sequence.token_ids, made_up.token_id)),)


def _with_logprobs(
    tokens: tuple[SampledToken, ...], sequence: TokenSequence, vocab_size: int
) -> tuple[SampledToken, ...]:
    """Where asked for: probability 2^-(i+1) for the chosen token and those after it in the vocabulary, in order."""
    wanted = sequence.request.sampling.logprobs
    if wanted is None:
        return tokens
    likely = _likely(wanted, vocab_size)
    return tuple(
        [SampledToken(t.token_id, -math.log(2), _alternatives(t.token_id, likely, vocab_size)) for t in tokens]
    )
