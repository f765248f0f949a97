"""Runs the operations of a model, or of an adapter, once before its first launch, which would otherwise wait for
seconds: Triton compiles its kernels, and libraries load those that they choose for prompts of these sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pdmux_actor.executor.cuda.ban_kernels import all_allowed, ban_tokens
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_attention import BatchAttention
from pdmux_actor.executor.cuda.device_batch import ChunkExtent, DeviceBatch
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.device_sampler import SamplingKind, SamplingRows
from pdmux_actor.executor.cuda.host_stage import HostStage
from pdmux_actor.executor.cuda.launch_buckets import bucket_of
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash
from pdmux_actor.executor.cuda.split_kernels import split_list, target_splits
from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.lora import AdapterBatch, TokenRun
from pdmux_actor.models.weights import torch_dtype
from pdmux_actor.models.workspace import LaneArena, Workspace

_SHORTEST_PROMPT_TOKENS = 2
_SMALLEST_LARGE_PROMPT_TOKENS = 128
# Of an adapter that comes while its base serves: nobody has left room for what larger prompts compute in.
_MOST_ADAPTED_TOKENS = 512


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

    @property
    def batches(self) -> Sequence[int]:
        """Returns what batches are padded to."""
        return sorted({bucket_of(n) for n in range(1, self.sequences + 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Runs beside launches of other models, over a pool of a single row. `workspace`: of decoders' operators. `flash`
    is tried.
    """

    block_bytes: int
    device: torch.device
    num_sms: int
    sizes: WarmedSizes
    workspace: Workspace
    flash: FittingFlash

    def model(self, loaded: LoadedModel) -> None:
        """One decode step on padding, and the first layer of prompts with a cached prefix."""
        kv = self._kv(loaded.info)
        bucket = DecodeBucket(loaded.decoder, kv, 1, 1)
        bucket.load_padding(HostStage(self.device))
        bucket.forward(self.num_sms)
        for size in self.sizes.batches:  # there are variants for large ones
            contexts = torch.zeros(size, dtype=torch.int32, device=self.device)
            split_list(contexts, target_splits(kv.kv_heads, self.num_sms))
        self.flash.of(kv.pool, loaded.info.spec.head_dim)
        first_row = torch.zeros(1, dtype=torch.int32, device=self.device)
        ban_tokens(bucket.logits, all_allowed(bucket.logits), first_row)
        bucket.sample(SamplingKind.DRAWN)
        for num_tokens in self.sizes.prompts:
            self._run_layer(loaded, kv, num_tokens, None)

    def adapter(self, adapter: str, base: LoadedModel | CudaModel) -> None:
        """The first layer of prompts, and of batches whose sequences all ask for it."""
        slots, kv = base.decoder.adapters, self._kv(base.info)
        assert slots is not None, "an adapter of the base is loaded"
        for num_tokens in self.sizes.prompts:
            length = min(num_tokens, base.info.max_model_len)
            if length > _MOST_ADAPTED_TOKENS:
                continue
            self._run_layer(base, kv, length, slots.batch([TokenRun(adapter, 0, length)]))
        for size in self.sizes.batches:
            length = min(size, base.info.max_model_len)
            self._run_layer(base, kv, length, slots.batch([TokenRun(adapter, place, 1) for place in range(length)]))

    def _kv(self, info: ModelInfo) -> DeviceKv:
        spec, geometry = info.spec, info.geometry
        pool = torch.zeros(geometry.blocks_per_row, self.block_bytes, dtype=torch.uint8, device=self.device)
        return DeviceKv(
            pool=pool.view(torch_dtype(spec.dtype)),
            table=torch.arange(geometry.blocks_per_row, dtype=torch.int32, device=self.device).unsqueeze(0),
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            tokens_per_row=geometry.tokens_per_row,
            on_device=np.ones(1, dtype=np.bool_),
        )

    def _run_layer(
        self, model: LoadedModel | CudaModel, kv: DeviceKv, num_tokens: int, adapters: AdapterBatch | None
    ) -> None:
        batch, decoder = _prompt(min(num_tokens, model.info.max_model_len), self.device), model.decoder
        with self.workspace.using(LaneArena(self.device)):  # an empty one: as on a lane, but all from torch's allocator
            hidden, rotary = decoder.start(batch.tensors["token_ids"], batch.tensors["positions"])
            attention = BatchAttention(kv, batch, 1, self.workspace)
            decoder.forward_layers(hidden, rotary, attention, 0, 1, adapters)


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
