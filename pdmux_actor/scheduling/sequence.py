"""A request's state inside an engine."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pdmux_actor.kv.prefix_cache import HashedPieces, PrefixHash, PrefixMatch, prefix_root
from pdmux_actor.messages import FinishReason, GenerateRequest, PromptLogprob
from pdmux_actor.scheduling.output_constraint import OutputConstraint


class SequenceStatus(Enum):
    WAITING = "waiting"  # holds no KV
    PREFILLING = "prefilling"  # holds KV rows, some known tokens have no KV yet
    RUNNING = "running"  # every known token but the last has KV: ready to decode
    FINISHED = "finished"


class Precedence(IntEnum):
    """Orders sequences that wait, before those of other precedence."""

    FIRST = 0  # it was preempted, or has been passed over for long
    IN_TIME = 1
    LATE = 2  # its first token cannot be in time, or only at the cost of more others (serving_order.py)
    BACKGROUND = 3  # it gives way to all others, in time or not


class TbtTarget(NamedTuple):
    """A target that running sequences share: so many that have met all of theirs so far, and so many that have not.
    Those in the background count as a hundredth each.
    """

    tbt_s: float
    on_time: float
    missed: float


@dataclass(frozen=True, slots=True)
class AdapterInUse:
    """Names the model that a request of an adapter runs on. `kv_space`: no two adapters, nor two loads of one, share
    KV.
    """

    base: str
    kv_space: str


@dataclass(slots=True, eq=False)
class TokenSequence:
    """Cursor over a request's tokens.

    While a launch that names the sequence is in flight, executor threads read it and nobody writes it; `pending_finish`
    is the one exception (the engine thread notes an abort there and acts on it at completion).

    KV of token i lies in row `rows[i // tokens_per_row]` of the model's row table, at offset `i % tokens_per_row`.
    """

    request: GenerateRequest
    arrival_s: float
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    num_computed_tokens: int = 0  # KV exists for token_ids[:num_computed_tokens]
    rows: list[int] = field(default_factory=list)
    prefix_hashes: list[PrefixHash] = field(default_factory=list)  # one per row that token_ids fill, lazily
    prefix_match: PrefixMatch = field(default_factory=PrefixMatch)
    num_reused_rows: int = 0  # the first of `rows`: they were cached when they were taken
    untold_cached_tokens: int = 0  # of the prompt, found when its prefill began; told with the first token
    prompt_logprobs: list[PromptLogprob] | None = None  # so far, of the second token on; None: not asked for, or told
    embedding: bytes = b""  # as of TokenEvent; empty: not asked for, not computed yet, or told
    status: SequenceStatus = SequenceStatus.WAITING
    in_flight: bool = False
    in_next_flight: bool = False  # a step that was handed out behind the launch in flight uses its KV (early_steps.py)
    pending_finish: FinishReason | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    is_late: bool = False  # its first token or a gap was beyond its target
    precedence: Precedence = Precedence.IN_TIME
    kv_is_sound: bool = True  # False: never to be reused, not even as a prefix
    constraint: OutputConstraint | None = None
    adapter: AdapterInUse | None = None
    is_stepwise: bool = False  # each token must be known on the host before the next is drawn
    promised_tokens: int = 0  # of the longest sequence that the unit took when this one came
    _array: npt.NDArray[np.int64] | None = field(default=None, init=False, repr=False)
    _array_tokens: int = field(default=0, init=False, repr=False)
    # Read once per token: what the request says.
    most_tokens: int = field(init=False)  # prompt and output
    tbt_s: float = field(init=False)
    stop_token_ids: tuple[int, ...] = field(init=False)
    gives_way: bool = field(init=False)
    is_plain: bool = field(init=False)  # whatever tokens come, nothing but their ids is asked for

    def __post_init__(self) -> None:
        self.most_tokens = self.num_prompt_tokens + self.request.sampling.max_tokens
        self.tbt_s = self.request.slo.tbt_s
        self.stop_token_ids = self.request.sampling.stop_token_ids
        self.gives_way = self.request.gives_way
        self.is_plain = self.constraint is None and self.request.sampling.logprobs is None
        if self.gives_way:
            self.precedence = Precedence.BACKGROUND

    @classmethod
    def from_request(
        cls,
        request: GenerateRequest,
        arrival_s: float,
        constraint: OutputConstraint | None = None,
        adapter: AdapterInUse | None = None,
    ) -> "TokenSequence":
        processing = request.sampling.processing
        return cls(
            request=request,
            arrival_s=arrival_s,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            num_prompt_tokens=len(request.prompt_token_ids),
            prompt_logprobs=None if request.sampling.prompt_logprobs is None else [],
            constraint=constraint,
            adapter=adapter,
            is_stepwise=constraint is not None or (processing is not None and processing.has_phrases),
        )

    def token_array(self) -> npt.NDArray[np.int64]:
        """`token_ids` as an array, to be read only until the next call. What it held before is not converted again."""
        num_tokens = len(self.token_ids)
        if self._array is None or num_tokens > len(self._array):
            self._array, self._array_tokens = np.empty(num_tokens + num_tokens // 2 + 64, dtype=np.int64), 0
        self._array[self._array_tokens : num_tokens] = self.token_ids[self._array_tokens :]
        self._array_tokens = num_tokens
        return self._array[:num_tokens]

    def hashes(self, num_tokens: int, tokens_per_row: int, pieces: HashedPieces) -> list[PrefixHash]:
        """Names of the full rows among the first `num_tokens` tokens, to be read only."""
        num_rows = num_tokens // tokens_per_row
        if len(self.prefix_hashes) < num_rows:
            root = prefix_root(self.request.cache_salt, "" if self.adapter is None else self.adapter.kv_space)
            pieces.extend(self.prefix_hashes, self.token_ids, tokens_per_row, root)
        return self.prefix_hashes if len(self.prefix_hashes) == num_rows else self.prefix_hashes[:num_rows]

    def token_outside(self, vocab_size: int) -> int | None:
        """A token that a vocabulary of this size does not have, among those that the request names, too."""
        distinct = set(self.token_ids)  # often few: faster than two passes over a long prompt
        named = (*self.request.sampling.named_tokens, *self.request.scored_tokens)
        extremes = [min(distinct, default=0), max(distinct, default=0), *named]
        return next((token_id for token_id in extremes if not 0 <= token_id < vocab_size), None)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Says whether hidden states of its prompt are still wanted: until then no cached KV may stand for them."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def model(self) -> str:
        """Names the model whose launches it is in: of an adapter's request the base."""
        return self.request.model if self.adapter is None else self.adapter.base

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def first_token_due_s(self) -> float:
        """A sequence that has had it (it was preempted) is in no hurry."""
        return float("inf") if self.first_token_s is not None else self.arrival_s + self.request.slo.ttft_s

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens
