"""Compiles a model's kernels before its first launch, which would otherwise wait for seconds."""

import numpy as np
import torch

from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_attention import DeviceKv
from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.executor.cuda.device_sampler import SamplingKind
from pdmux_actor.executor.cuda.host_stage import HostStage
from pdmux_actor.executor.cuda.kv_kernels import gather_kv
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.models.weights import torch_dtype


def warm_up(loaded: LoadedModel, block_bytes: int, device: torch.device, num_sms: int) -> None:
    """One decode step on padding, one gather and the attention of two prompt tokens, over a pool of a single row. Runs
    beside launches of other models.
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
    bucket.sample(SamplingKind.DRAWN)
    first = torch.zeros(1, dtype=torch.int32, device=device)
    gather_kv(kv.pool, kv.table, first, first, layer=0, kv_heads=kv.kv_heads, head_dim=kv.head_dim)
    # FlashAttention 4 compiles at its first call; the others load their code.
    prompt = torch.zeros(2, spec.num_heads + spec.num_kv_heads, spec.head_dim, dtype=kv.pool.dtype, device=device)
    key = prompt[:, spec.num_heads :]
    ends = torch.arange(0, 4, 2, dtype=torch.int32, device=device)
    chunk = ChunkExtent(first=0, length=2, context_tokens=2)
    varlen_attention(prompt[:, : spec.num_heads], key, key, ends, ends, [chunk])
