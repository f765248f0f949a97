"""The units of work that the scheduler gives to an executor's lanes, and what comes back.

Structs, since some are made per step (a frozen dataclass takes five times as long).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from types import MappingProxyType
from typing import ClassVar

import msgspec

from pdmux_actor.messages import PromptLogprob, SampledToken
from pdmux_actor.scheduling.sequence import TokenSequence
from profiler.latency import ChunkShape
from profiler.specs import DeviceSpec


class Lane(Enum):
    PREFILL = "prefill"
    DECODE = "decode"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call, a dozen per step


NUM_LANES = len(Lane)
PREFILL_LANE, FIRST_DECODE_LANE = 0, 1  # numbers of the places for launches in flight; see `lane_number`
_NO_ERRORS: Mapping[int, str] = MappingProxyType({})
_NO_EMBEDDINGS: Mapping[int, bytes] = MappingProxyType({})
_NO_PROMPTS: Mapping[int, tuple[PromptLogprob, ...]] = MappingProxyType({})


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens `[start, start + length)` of a sequence, to be given KV. A token is sampled after the last known token."""

    sequence: TokenSequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        return self.start + self.length == len(self.sequence.token_ids)

    @property
    def embedded_token(self) -> int | None:
        """The place in the chunk of the token whose hidden state is the embedding that its request asks for."""
        last = self.sequence.num_prompt_tokens - 1 - self.start
        return last if self.sequence.request.embeds and 0 <= last < self.length else None

    @property
    def shape(self) -> ChunkShape:
        return ChunkShape(self.length, self.start)


class DecodePart(msgspec.Struct, frozen=True, gc=False):
    """SMs `[first_sm, first_sm + sms)` of the decode share, which begins at SM 0: the decode lane `index`.

    Of launches in flight at once neither parts nor indices are the same, and a model has one of them at most.
    """

    index: int
    first_sm: int
    sms: int

    @property
    def end_sm(self) -> int:
        return self.first_sm + self.sms


class PrefillSlice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Layers `[first_layer, last_layer)` of a prefill batch, on the prefill lane.

    Slices of one batch share `batch_id` and `chunks`, come in order, and the executor keeps the hidden states between
    them. The slice that ends at the model's last layer samples one token for each chunk that `samples`.
    """

    lane: ClassVar[Lane] = Lane.PREFILL
    batch_id: int
    model: str
    chunks: tuple[Chunk, ...]
    first_layer: int
    last_layer: int


class DropPrefill(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Forget the hidden states of an unfinished prefill batch. Takes effect at once; has no completion."""

    batch_id: int


class DecodeStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`steps` tokens for each sequence. KV rows for all steps are allocated beforehand.

    Decode steps of several models may run at once, each on its `part` of the decode share; None is all of it. With
    `ahead` it is behind a launch that is in flight yet and brings each of its sequences so many tokens
    (early_steps.py).
    """

    lane: ClassVar[Lane] = Lane.DECODE
    model: str
    sequences: tuple[TokenSequence, ...]
    steps: int = 1
    part: DecodePart | None = None
    ahead: int = 0


class MixedStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All layers over prefill chunks and one decode step of `sequences`, fused, on the whole decode share.

    With several `nano_batches` operators of its parts overlap (profiler/nano_batches.py): in the simulator. The
    executors that compute run the same step as one batch.
    """

    lane: ClassVar[Lane] = Lane.DECODE
    model: str
    chunks: tuple[Chunk, ...]
    sequences: tuple[TokenSequence, ...]
    nano_batches: int = 1


class Repartition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """SMs (cores on a CPU) of the lanes' next launches: decode has the first ones, prefill the last.

    Their sum never exceeds the device, nor is the decode share less than what its parts in flight reach to. Has no
    completion.
    """

    prefill_sms: int
    decode_sms: int


ComputeLaunch = PrefillSlice | DecodeStep | MixedStep
Launch = ComputeLaunch | DropPrefill | Repartition


class LaunchCompletion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`tokens[i]` are the new tokens of the launch's i-th sampling sequence, in the order of `sampling_sequences`.

    `error` means that the launch produced nothing; its sequences fail with that reason. `sequence_errors` are reasons
    why single ones failed, by their i; they have no tokens, and what they computed must not be used again.
    `prompt_logprobs` are, by the place of a chunk, those of the tokens behind each of the chunk's, where its sequence
    lacks them; `embeddings`, of chunks that have an `embedded_token`.
    """

    launch: ComputeLaunch
    started_s: float
    finished_s: float
    tokens: tuple[tuple[SampledToken, ...], ...] = ()
    error: str | None = None
    sequence_errors: Mapping[int, str] = _NO_ERRORS
    prompt_logprobs: Mapping[int, tuple[PromptLogprob, ...]] = _NO_PROMPTS
    embeddings: Mapping[int, bytes] = _NO_EMBEDDINGS


def set_in_flight(sequences: Iterable[TokenSequence], value: bool) -> None:
    for sequence in sequences:
        sequence.in_flight = value


def lane_number(launch: ComputeLaunch) -> int:
    """Returns which of the launches in flight it is: prefill, the decode lane, or one of several decode lanes."""
    if isinstance(launch, DecodeStep):
        return FIRST_DECODE_LANE if launch.part is None else FIRST_DECODE_LANE + launch.part.index
    return PREFILL_LANE if isinstance(launch, PrefillSlice) else FIRST_DECODE_LANE


def sampling_sequences(launch: ComputeLaunch, num_layers: int) -> tuple[TokenSequence, ...]:
    """Sequences that receive tokens from `launch`: sampling chunks first, then decoding sequences."""
    match launch:
        case DecodeStep(sequences=sequences):
            return sequences
        case MixedStep(chunks=chunks, sequences=sequences):
            return tuple([c.sequence for c in chunks if c.samples]) + sequences
        case PrefillSlice(chunks=chunks, last_layer=last_layer):
            if last_layer < num_layers:
                return ()
            return tuple([c.sequence for c in chunks if c.samples])


def decode_shares(device: DeviceSpec) -> range:
    """SMs that decode can have while prefill has the rest, ascending, in steps of the device's granularity, one of
    which is the least that a lane can have: 128 of 132 cannot be had where it is 8.
    """
    step = device.partition_granularity_sms
    return range(step, device.num_sms - step + 1, step)


def least_decode_share(device: DeviceSpec, worst_decode_s: Callable[[int], float], target_s: float) -> int | None:
    """The least share whose worst-case decode latency meets the target; else the largest one.

    Prefill gets what remains: the split that meets the TBT target and is best for prefill (MuxWise §3.4.1). None when
    the device cannot be shared (a single SM).
    """
    shares = decode_shares(device)
    return least_share(shares, worst_decode_s, target_s) or max(shares, default=None)


def least_share(shares: Sequence[int], worst_decode_s: Callable[[int], float], target_s: float) -> int | None:
    """The first of the shares whose worst-case decode latency meets the target."""
    return next((share for share in shares if worst_decode_s(share) <= target_s), None)


def ample_decode_share(
    device: DeviceSpec,
    decode_s: Callable[[int], float],
    *,
    tolerance: float,
    known: Set[int],
    bearable_s: float,
) -> int:
    """The least share, up to half of the SMs, on which decode takes at most `1 + tolerance` times as long as on all.

    Decode is bound by memory bandwidth, which a part of the SMs can use up. A prompt can start at once on the others;
    on less than half of them it is better off when it waits for the end of the step and has a fair share then.
    The times of other shares than the `known` are only modelled. More SMs are never slower: of the shares between the
    largest that is known to be too slow and the least that is known not to be, the least that should do is tried, else
    the one next to what is known; if its modelled time is at most `bearable_s`.
    """
    longest_s = (1 + tolerance) * decode_s(device.num_sms)
    if device.num_sms not in known:
        return device.num_sms
    untried: list[int] = []
    least = device.num_sms
    for share in decode_shares(device):
        if share > device.num_sms // 2:
            break
        if share not in known:
            untried.append(share)
        elif decode_s(share) <= longest_s:
            least = share
            break
        else:
            untried.clear()
    if not untried:
        return least
    trial = next((share for share in untried if decode_s(share) <= longest_s), untried[-1])
    return trial if decode_s(trial) <= bearable_s else least


def fixed_decode_share(device: DeviceSpec, share: float) -> int | None:
    """The possible decode share nearest to a fraction of the device; None when the device cannot be shared."""
    return min(decode_shares(device), key=lambda sms: abs(sms - share * device.num_sms), default=None)
