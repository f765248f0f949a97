"""Penalties, biases and bans: what changes the logits of those rows that ask for it, on any device, without a wait.

Each equals transformers' processor of that name on the same logits; frequency and presence penalties are OpenAI's,
of the output alone. A token that occurs often is written often with one value, or has one value subtracted as often:
the order does not matter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.messages import LogitsProcessing
from pdmux_actor.scheduling.sequence import TokenSequence

Ints = npt.NDArray[np.int64]
_NOTHING = LogitsProcessing()


@dataclass(frozen=True, slots=True)
class _Places:
    """Entries `[rows[i], tokens[i]]` of the logits."""

    rows: Tensor
    tokens: Tensor

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessor:
    """Holds the processing of one launch's rows; a row that asks for nothing is not touched.

    Per row: float32 penalties and, float64, `log_min_p`, minus infinity for none.
    """

    biased: _Places
    biases: Tensor
    known: _Places  # prompt and output, of rows with a repetition penalty
    output: _Places  # of rows with a frequency or presence penalty
    banned: _Places
    stops: _Places  # of rows that are too short to stop
    stop_steps: Tensor  # for each of `stops`: look-ahead steps for which that is so
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    has_repetition: Tensor
    has_counts: Tensor
    log_min_p: Tensor | None

    @classmethod
    def of(
        cls,
        sequences: Sequence[TokenSequence],
        *,
        num_rows: int | None = None,
        to_device: Callable[[npt.NDArray[np.generic]], Tensor] = torch.from_numpy,
    ) -> "LogitsProcessor | None":
        """None when no row asks. Padded to `num_rows`."""
        asking = [
            (row, s)
            for row, s in enumerate(sequences)
            if (p := s.request.sampling).processing is not None or (p.stop_token_ids and _steps_short(s) > 0)
        ]
        if not asking:
            return None
        wanted = [(row, s, s.request.sampling.processing or _NOTHING) for row, s in asking]
        size = num_rows or len(sequences)
        repetition, frequency, presence = (np.full(size, value, np.float32) for value in (1.0, 0.0, 0.0))
        log_min_p = np.full(size, -np.inf)
        for row, _, processing in wanted:
            repetition[row], frequency[row] = processing.repetition_penalty, processing.frequency_penalty
            presence[row] = processing.presence_penalty
            log_min_p[row] = np.log(processing.min_p) if processing.min_p > 0 else -np.inf

        def places(pairs: Iterator[tuple[int, Ints]]) -> _Places:
            rows, tokens = _flat(list(pairs))
            return _Places(to_device(rows), to_device(tokens))

        counted = (frequency != 0) | (presence != 0)
        stops = [(row, s) for row, s in asking if s.request.sampling.stop_token_ids and _steps_short(s) > 0]
        steps = [_steps_short(s) for _, s in stops for _ in s.request.sampling.stop_token_ids]
        return cls(
            biased=places((row, np.array([t for t, _ in p.logit_bias], np.int64)) for row, _, p in wanted),
            biases=to_device(np.array([bias for _, _, p in wanted for _, bias in p.logit_bias], np.float32)),
            known=places((row, s.token_array()) for row, s, _ in wanted if repetition[row] != 1),
            output=places((row, s.token_array()[s.num_prompt_tokens :]) for row, s, _ in wanted if counted[row]),
            banned=places(
                (row, np.array(p.banned_after(s.token_ids), np.int64)) for row, s, p in wanted if p.bad_words
            ),
            stops=places((row, np.array(s.request.sampling.stop_token_ids, np.int64)) for row, s in stops),
            stop_steps=to_device(np.array(steps, np.int64)),
            repetition=to_device(repetition),
            frequency=to_device(frequency),
            presence=to_device(presence),
            has_repetition=to_device(np.flatnonzero(repetition != 1)),
            has_counts=to_device(np.flatnonzero(counted)),
            log_min_p=to_device(log_min_p) if np.isfinite(log_min_p).any() else None,
        )

    def apply(self, logits: Tensor, earlier: Sequence[Tensor] = ()) -> None:
        """Changes `logits`, float32 [rows, vocab_size]; `earlier` are tokens [rows] of the launch's steps so far."""
        if len(self.biased):
            logits.index_put_((self.biased.rows, self.biased.tokens), self.biases, accumulate=True)
        known = _grown(self.known, self.has_repetition, earlier)
        if len(known):
            before, penalties = logits[known.rows, known.tokens], self.repetition[known.rows]
            logits[known.rows, known.tokens] = torch.where(before < 0, before * penalties, before / penalties)
        output = _grown(self.output, self.has_counts, earlier)
        if len(output):
            before = logits[output.rows, output.tokens]
            logits[output.rows, output.tokens] = before - self.presence[output.rows]
            logits.index_put_((output.rows, output.tokens), -self.frequency[output.rows], accumulate=True)
        if len(self.banned):
            logits[self.banned.rows, self.banned.tokens] = float("-inf")
        if len(self.stops):
            before = logits[self.stops.rows, self.stops.tokens]
            too_short = self.stop_steps > len(earlier)
            logits[self.stops.rows, self.stops.tokens] = before.masked_fill(too_short, float("-inf"))


def _steps_short(sequence: TokenSequence) -> int:
    """Until it may stop."""
    return sequence.request.sampling.min_tokens - sequence.num_output_tokens


def _grown(places: _Places, rows: Tensor, earlier: Sequence[Tensor]) -> _Places:
    if not earlier or not len(rows):
        return places
    tokens = [sampled[rows].long() for sampled in earlier]
    return _Places(torch.cat([places.rows, rows.repeat(len(tokens))]), torch.cat([places.tokens, *tokens]))


def _flat(pairs: Sequence[tuple[int, Ints]]) -> tuple[Ints, Ints]:
    rows = np.repeat(np.array([row for row, _ in pairs], np.int64), [len(tokens) for _, tokens in pairs])
    return rows, np.concatenate([tokens for _, tokens in pairs]) if pairs else np.zeros(0, np.int64)
