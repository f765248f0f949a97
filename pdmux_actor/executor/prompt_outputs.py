"""Makes what prompts are asked for beside tokens of a prefill's hidden states: log-probabilities, in memory that does
not grow with the prompt, embeddings, and logits of tokens that stand for a score.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdmux_actor.messages import PromptLogprob
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.scheduling.launch import Chunk

TILE_BYTES = 32 * 1024 * 1024  # of the logits that are there at once; of their softmax there is as much again
_LOGIT_BYTES = 4  # float32


@dataclass(frozen=True, slots=True)
class _Tile:
    """Of some tokens, in their order: [tokens], or [tokens, alternatives]."""

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedLogprobs:
    """Holds those of one chunk, which are on the host once the launch is over."""

    place: int
    token_ids: Sequence[int]
    tiles: Sequence[_Tile]

    def read(self) -> tuple[PromptLogprob, ...]:
        read: list[PromptLogprob] = []
        for tile in self.tiles:
            tops = [
                tuple(zip(ids, logprobs, strict=True))
                for ids, logprobs in zip(tile.top_ids.tolist(), tile.top_logprobs.tolist(), strict=True)
            ]
            token_ids = self.token_ids[len(read) : len(read) + len(tops)]
            read += map(PromptLogprob, token_ids, tile.logprobs.tolist(), tile.ranks.tolist(), tops)
        return tuple(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """Hidden states `[first, first + len(token_ids))` of a launch, which tell how probable `token_ids` were: the
    prompt's tokens behind each of the chunk that has this `place` in the launch.
    """

    place: int
    first: int
    token_ids: Sequence[int]
    num_alternatives: int

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "Iterator[PromptRows]":
        """Finds those of chunks whose sequences lack them; chunks are at the beginning of the launch's tokens."""
        first = 0
        for place, chunk in enumerate(chunks):
            sequence = chunk.sequence
            if sequence.lacks_prompt_logprobs:
                last = min(chunk.start + chunk.length + 1, sequence.num_prompt_tokens)
                yield cls(
                    place=place,
                    first=first,
                    token_ids=sequence.token_ids[chunk.start + 1 : last],
                    num_alternatives=sequence.request.sampling.prompt_logprobs or 0,
                )
            first += chunk.length

    def computed(
        self, decoder: LayeredDecoder, hidden: Tensor, to_host: Callable[[Tensor], Tensor] = lambda tensor: tensor
    ) -> ComputedLogprobs:
        """`hidden` [tokens, hidden_size] are those of the launch, after the last layer. Enqueues, where a device is to
        compute it, and does not wait.
        """
        tiles: list[_Tile] = []
        targets = torch.tensor(self.token_ids, dtype=torch.int64)
        if hidden.is_cuda:
            targets = targets.pin_memory().to(hidden.device, non_blocking=True)
        tile_tokens = max(1, TILE_BYTES // (decoder.spec.vocab_size * _LOGIT_BYTES))
        for done in range(0, len(targets), tile_tokens):
            tile = targets[done : done + tile_tokens]
            start = self.first + done
            report = decoder.logits(hidden[start : start + len(tile)]).log_softmax(dim=-1)
            logprobs = report.gather(1, tile[:, None])
            top_logprobs, top_ids = report.topk(min(self.num_alternatives, report.shape[1]), dim=-1)
            ranks = (report > logprobs).sum(dim=-1) + 1
            tiles.append(_Tile(*map(to_host, (logprobs.squeeze(1), ranks, top_ids, top_logprobs))))
        return ComputedLogprobs(place=self.place, token_ids=self.token_ids, tiles=tiles)


@dataclass(frozen=True, slots=True)
class ComputedEmbeddings:
    """Holds those of a launch, float32, which are on the host once the launch is over: [prompts, hidden_size] of
    prompts whose last states are asked for, and for each set of scored tokens [prompts, tokens].
    """

    parts: Sequence[tuple[Sequence[int], Tensor]]  # places of chunks, and a row for each

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        decoder: LayeredDecoder,
        hidden: Tensor,
        to_host: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> "ComputedEmbeddings | None":
        """`hidden` [tokens, hidden_size] are those of the launch, after the last layer; chunks are at the beginning of
        its tokens. Enqueues, where a device is to compute it, and does not wait. None: nobody asks.
        """
        asked: dict[tuple[int, ...], dict[int, Tensor]] = {}  # by scored tokens and place: a prompt's last state
        first = 0
        for place, chunk in enumerate(chunks):
            if (token := chunk.embedded_token) is not None:
                state = hidden[first + token : first + token + 1]
                asked.setdefault(chunk.sequence.request.scored_tokens, {})[place] = state
            first += chunk.length
        parts: list[tuple[Sequence[int], Tensor]] = []
        for scored, states in asked.items():
            last = torch.cat(list(states.values()))
            told = _logits_of(scored, decoder, last) if scored else decoder.final_states(last)
            parts.append((list(states), to_host(told)))
        return cls(parts) if parts else None

    def read(self) -> dict[int, bytes]:
        """Returns them by the place of a chunk, float32, little-endian."""
        return {
            place: row.tobytes()
            for places, told in self.parts
            for place, row in zip(places, told.numpy().astype("<f4", copy=False), strict=True)
        }


def _logits_of(token_ids: Sequence[int], decoder: LayeredDecoder, hidden: Tensor) -> Tensor:
    """[prompts, hidden_size] after the last layer -> float32 [prompts, tokens]. Copies one token's column after the
    other: an index would have to be uploaded.
    """
    logits = decoder.logits(hidden)
    return torch.stack([logits[:, token_id] for token_id in token_ids], dim=1)
