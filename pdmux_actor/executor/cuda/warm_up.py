"""Runs a model's operations once before its first launch, which would otherwise wait for seconds: Triton compiles its
kernels, and libraries load those that they choose for prompts of these sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pdmux_actor.executor.cuda.ban_kernels import all_allowed, ban_tokens
from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_attention import BatchAttention
from pdmux_actor.executor.cuda.device_batch import ChunkExtent, DeviceBatch
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.device_sampler import SamplingKind, SamplingRows
from pdmux_actor.executor.cuda.host_stage import HostStage
from pdmux_actor.executor.cuda.launch_buckets import bucket_of
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash
from pdmux_actor.executor.cuda.split_list import split_list, target_splits
from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.models.weights import torch_dtype
from pdmux_actor.models.workspace import LaneArena, Workspace

_SHORTEST_PROMPT_TOKENS = 2
_SMALLEST_LARGE_PROMPT_TOKENS = 128


def prompt_sizes(most_tokens: int) -> tuple[int, ...]:
    """The largest launch and every quarter of the one before: for products of about the same size libraries choose the
    same kernels.
    """
    sizes = [most_tokens]
    while sizes[-1] >= 4 * _SMALLEST_LARGE_PROMPT_TOKENS:
        sizes.append(sizes[-1] // 4)
    return (*(size for size in sizes if size > _SHORTEST_PROMPT_TOKENS), _SHORTEST_PROMPT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedSizes:
    """Tokens of prompts, and the most sequences of a batch."""

    prompts: Sequence[int]
    sequences: int


def warm_up(
    loaded: LoadedModel,
    block_bytes: int,
    device: torch.device,
    num_sms: int,
    sizes: WarmedSizes,
    workspace: Workspace,
    flash: FittingFlash,
) -> None:
    """One decode step on padding, and the first layer of prompts with a cached prefix, over a pool of a single row.
    Runs beside launches of other models. `workspace`: of the decoder's operators. `flash` is tried.
    """
    spec, geometry = loaded.info.spec, loaded.info.geometry
    pool = torch.zeros(geometry.blocks_per_row, block_bytes, dtype=torch.uint8, device=device)
    kv = DeviceKv(
        pool=pool.view(torch_dtype(spec.dtype)),
        table=torch.arange(geometry.blocks_per_row, dtype=torch.int32, device=device).unsqueeze(0),
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        tokens_per_row=geometry.tokens_per_row,
        on_device=np.ones(1, dtype=np.bool_),
    )
    bucket = DecodeBucket(loaded.decoder, kv, 1, 1)
    bucket.load_padding(HostStage(device))
    bucket.forward(num_sms)
    for size in sorted({bucket_of(n) for n in range(1, sizes.sequences + 1)}):  # there are variants for large ones
        split_list(torch.zeros(size, dtype=torch.int32, device=device), target_splits(kv.kv_heads, num_sms))
    flash.of(kv.pool, spec.head_dim)
    first_row = torch.zeros(1, dtype=torch.int32, device=device)
    ban_tokens(bucket.logits, all_allowed(bucket.logits), first_row)
    bucket.sample(SamplingKind.DRAWN)
    with workspace.using(LaneArena(device)):  # an empty one: as on a lane, but everything from torch's allocator
        for num_tokens in sizes.prompts:
            batch = _prompt(min(num_tokens, loaded.info.max_model_len), device)
            hidden, rotary = loaded.decoder.start(batch.tensors["token_ids"], batch.tensors["positions"])
            loaded.decoder.forward_layers(hidden, rotary, BatchAttention(kv, batch, 1, workspace), 0, 1)


def _prompt(num_tokens: int, device: torch.device) -> DeviceBatch:
    """All of its tokens in row 0, and its whole context gathered from there."""
    zeros = torch.zeros(num_tokens, dtype=torch.int32, device=device)
    ends = torch.arange(0, 2 * num_tokens, num_tokens, dtype=torch.int32, device=device)
    return DeviceBatch(
        tensors={
            "token_ids": zeros,
            "positions": torch.arange(num_tokens, dtype=torch.int32, device=device),
            "rows": zeros,
            "query_ends": ends,
            "context_ends": ends,
            "context_rows": zeros,
            "context_offsets": zeros,
        },
        arrays={},
        chunks=(ChunkExtent(first=0, length=num_tokens, context_tokens=num_tokens),),
        num_decodes=0,
        has_prefix=True,
        sampling=SamplingRows.of(()),
        begun_rows=np.zeros(0, dtype=np.int64),
        prompts=(),
    )
