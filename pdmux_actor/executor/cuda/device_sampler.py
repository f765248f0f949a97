"""Sampling on the device: nothing here waits for the GPU, and every shape is known beforehand, as a capture needs.

The draws are those of executor.sampler, row by row: same uniform numbers, same order of filters. Weights have 24 bits
here and 53 there, so that a number within 1e-7 of the border of two tokens may draw the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.constrained_rows import ConstrainedRows
from pdmux_actor.executor.cuda.ban_kernels import ban_tokens
from pdmux_actor.executor.cuda.host_stage import sent
from pdmux_actor.executor.cuda.sampling_kernels import draw_rows, uniform_numbers
from pdmux_actor.executor.logits_processing import LogitsProcessor
from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.sequence import TokenSequence

NOT_FINITE = -1  # stands for the token of a row whose logits hold NaN or infinity
_UINT64 = (1 << 64) - 1


class SamplingKind(Enum):
    """The least that serves all rows of a batch."""

    GREEDY = "greedy"
    DRAWN = "drawn"  # each row by its own temperature, top-k, top-p and min-p


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Parameters of the rows of one launch, on the host: `arrays` hold what no token changes.

    `is_plain`: no log-probabilities, no masked tokens, no changed logits: what captured steps can do. Nothing here
    depends on how far the sequences are then.
    """

    kind: SamplingKind
    arrays: Mapping[str, npt.NDArray[np.generic]]
    num_alternatives: tuple[int | None, ...]
    is_plain: bool
    has_min_tokens: bool
    processor: LogitsProcessor | None = None
    constrained: ConstrainedRows | None = None

    @classmethod
    def of(
        cls, sequences: Sequence[TokenSequence], *, num_rows: int | None = None, device: torch.device | None = None
    ) -> "SamplingRows":
        """Builds the rows, padded with greedy rows to `num_rows`. `device` is where the logits will be; None: the
        CPU.
        """
        params = [s.request.sampling for s in sequences]
        num_params, size = len(params), num_rows or len(params)
        drawn = any(p.temperature > 0 for p in params)
        temperature, top_p, top_k = np.zeros(size), np.ones(size), np.zeros(size, dtype=np.int32)
        seeds, min_tokens = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int32)
        if drawn:  # greedy rows read none of this, and a list is a long way to an array
            temperature[:num_params] = [p.temperature for p in params]
            top_p[:num_params] = [p.top_p for p in params]
            top_k[:num_params] = [p.top_k for p in params]
            seeds[:num_params] = [p.seed & _UINT64 for p in params]
        least = [p.min_tokens for p in params]
        too_short = any(least) and any(n > s.num_output_tokens for n, s in zip(least, sequences, strict=True))
        if too_short:
            min_tokens[:num_params] = least
        alternatives = tuple([p.logprobs for p in params])
        reports = any(n is not None for n in alternatives)
        processor = LogitsProcessor.of(sequences, num_rows=num_rows, to_device=partial(sent, device=device))
        constrained = ConstrainedRows.of(sequences, num_rows=num_rows)
        return cls(
            kind=SamplingKind.DRAWN if drawn else SamplingKind.GREEDY,
            arrays={
                "temperature": temperature,
                "top_p": top_p,
                "seeds": seeds.view(np.int64),
                "top_k": top_k,
                "min_tokens": min_tokens,
            },
            num_alternatives=alternatives,
            is_plain=not reports and not too_short and processor is None and constrained is None,
            has_min_tokens=too_short,
            processor=processor,
            constrained=constrained,
        )


def output_counts(sequences: Sequence[TokenSequence], num_rows: int) -> npt.NDArray[np.int32]:
    """Number of output tokens of each row, which changes with each of them."""
    counts = np.zeros(num_rows, dtype=np.int32)
    counts[: len(sequences)] = [len(s.token_ids) - s.num_prompt_tokens for s in sequences]
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """`token_ids`: int32 [rows]; the others [rows, most alternatives] or [rows], where a row asked for them."""

    token_ids: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def sample_rows(
    logits: Tensor,
    parameters: Mapping[str, Tensor],
    kind: SamplingKind,
    log_min_p: Tensor | None = None,
) -> Tensor:
    """Token ids int32 [rows], NOT_FINITE where the logits are not. logits: float32 [rows, vocab_size]; parameters:
    SamplingRows' arrays and `output_counts`; `log_min_p`: float64 [rows].
    """
    highest, token_ids = logits.max(dim=-1)
    if kind is SamplingKind.DRAWN:
        temperatures, top_ks, top_ps = (parameters[name] for name in ("temperature", "top_k", "top_p"))
        uniforms = uniform_numbers(parameters["seeds"], parameters["output_counts"])
        token_ids = draw_rows(logits, highest, token_ids, temperatures, top_ks, top_ps, uniforms, log_min_p)
    return torch.where(highest.isfinite(), token_ids, NOT_FINITE).to(torch.int32)


def sample_with_reports(
    logits: Tensor,
    parameters: Mapping[str, Tensor],
    rows: SamplingRows,
    eos_token_ids: Tensor,
    earlier: Sequence[Tensor] = (),
) -> DeviceSample:
    """Samples as `sample_rows`, with all that rows ask for: log-probabilities of the model's own distribution,
    penalties, masks. `earlier` are the token ids of the launch's steps so far, which `output_counts` count. logits are
    overwritten. What masks are filled from is known on the host, which fills them while the device computes the logits.
    """
    wanted = [n for n in rows.num_alternatives if n is not None]
    report = logits.log_softmax(dim=-1) if wanted else None
    if rows.processor is not None:
        rows.processor.apply(logits, [token_ids.clamp(min=0) for token_ids in earlier])
    if rows.has_min_tokens and len(eos_token_ids):
        too_short = parameters["min_tokens"] > parameters["output_counts"]
        ends = logits.index_select(1, eos_token_ids)
        logits.index_copy_(1, eos_token_ids, ends.masked_fill(too_short[:, None], float("-inf")))
    if rows.constrained is not None:
        words = sent(rows.constrained.fill(logits.shape[1]), logits.device)
        ban_tokens(logits, words, sent(np.array(rows.constrained.rows, dtype=np.int32), logits.device))
    log_min_p = None if rows.processor is None else rows.processor.log_min_p
    token_ids = sample_rows(logits, parameters, rows.kind, log_min_p)
    if report is None:
        return DeviceSample(token_ids=token_ids)
    top_logprobs, top_ids = report.topk(min(max(1, *wanted), report.shape[1]), dim=-1)
    chosen = report.gather(1, token_ids.clamp(min=0).long()[:, None]).squeeze(1)
    return DeviceSample(token_ids=token_ids, logprobs=chosen, top_ids=top_ids, top_logprobs=top_logprobs)


def host_tokens(sample: DeviceSample, num_alternatives: Sequence[int | None]) -> list[SampledToken]:
    """Plain values of a sample that was copied to the host. Rows beyond `num_alternatives` are padding."""
    ids = sample.token_ids.tolist()[: len(num_alternatives)]
    if sample.logprobs is None or sample.top_ids is None or sample.top_logprobs is None:
        return [SampledToken(token_id) for token_id in ids]
    tokens = []
    reports = zip(sample.logprobs.tolist(), sample.top_ids.tolist(), sample.top_logprobs.tolist(), strict=False)
    for token_id, wanted, (logprob, top_ids, top_logprobs) in zip(ids, num_alternatives, reports, strict=False):
        if wanted is None:
            tokens.append(SampledToken(token_id))
        else:
            top = tuple(zip(top_ids[:wanted], top_logprobs[:wanted], strict=True))
            tokens.append(SampledToken(token_id, logprob, top))
    return tokens
