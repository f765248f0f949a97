"""A model on the device: its weights, its view of the pool, and the buffers of its launches."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.launch_buckets import TOKEN_BUCKETS, bucket_of
from pdmux_actor.executor.cuda.piece_bucket import PieceBucket, PieceBuffers
from pdmux_actor.executor.cuda.prefill_bucket import PrefillBucket
from pdmux_actor.executor.cuda.prefix_pages import FittingFlash
from pdmux_actor.executor.cuda.shared_logits import SharedLogits
from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import Decoder, LayeredDecoder
from pdmux_actor.models.weights import torch_dtype
from pdmux_actor.models.workspace import Workspace

MakeBucket = Callable[[LayeredDecoder, DeviceKv, int, int, SharedLogits | None], DecodeBucket]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaModel:
    """`buckets` are made when first needed. `max_rows` is the most rows that a sequence can hold. `workspace` is the
    decoder's operators'. Prompts of up to `captured_tokens_per_sm` for each SM of their lane are worth a graph.
    """

    info: ModelInfo
    decoder: LayeredDecoder
    kv: DeviceKv
    row_table: npt.NDArray[np.int64]
    eos_token_ids: Tensor
    max_rows: int
    workspace: Workspace = field(default_factory=Workspace)
    logits: SharedLogits | None = None
    make_bucket: MakeBucket = DecodeBucket
    buckets: dict[int, DecodeBucket] = field(default_factory=dict)
    captured_tokens_per_sm: float = 0.0
    prefill_buckets: dict[int, PrefillBucket] = field(default_factory=dict)
    piece_buckets: dict[int, PieceBucket] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        row_table: npt.NDArray[np.int64],
        pool: Tensor,
        *,
        workspace: Workspace,
        most_sequences: int,
        gathered_bytes: int,
        flash: FittingFlash,
        captured_tokens_per_sm: float,
    ) -> "CudaModel":
        """A model whose rows' blocks lie in `pool`, of bytes. Steps of up to `most_sequences` share a place for logits.
        At most `gathered_bytes` of cached prefixes are gathered at a time. `flash` is used if it takes blocks.
        """
        info, device = loaded.info, pool.device
        pool = pool.view(torch_dtype(info.spec.dtype))
        return cls(
            info=info,
            decoder=loaded.decoder,
            kv=DeviceKv(
                pool=pool,
                table=torch.zeros(row_table.shape, dtype=torch.int32, device=device),
                kv_heads=info.spec.num_kv_heads,
                head_dim=info.spec.head_dim,
                tokens_per_row=info.geometry.tokens_per_row,
                on_device=np.zeros(len(row_table), dtype=np.bool_),
                flash=flash.of(pool, info.spec.head_dim),
                gathered_bytes=gathered_bytes,
            ),
            row_table=row_table,
            eos_token_ids=torch.tensor(sorted(info.eos_token_ids), dtype=torch.int64, device=device),
            max_rows=-(-info.max_model_len // info.geometry.tokens_per_row) + 1,
            workspace=workspace,
            logits=SharedLogits(bucket_of(most_sequences)),
            captured_tokens_per_sm=captured_tokens_per_sm,
        )

    def bucket(self, num_sequences: int) -> DecodeBucket:
        size = bucket_of(num_sequences)
        if size not in self.buckets:
            self.buckets[size] = self.make_bucket(self.decoder, self.kv, size, self.max_rows, self.logits)
        return self.buckets[size]

    def prefill_bucket(self, size: int) -> PrefillBucket:
        if size not in self.prefill_buckets:
            self.prefill_buckets[size] = PrefillBucket(self.decoder, self.kv, size)
        return self.prefill_buckets[size]

    @property
    def has_pieces(self) -> bool:
        """Tells whether its decoder knows the parts of its layers."""
        return isinstance(self.decoder, Decoder)

    def piece_bucket(self, size: int) -> PieceBucket:
        """Only where a launch `may_run_in_pieces`."""
        if size not in self.piece_buckets:
            assert isinstance(self.decoder, Decoder), "other decoders' layers are whole"
            held = [bucket.buffers for bucket in self.piece_buckets.values()][:1]
            pool = self.kv.pool
            buffers = held or [PieceBuffers.of(self.decoder, TOKEN_BUCKETS[-1], pool.dtype, pool.device)]
            self.piece_buckets[size] = PieceBucket(self.decoder, size, buffers[0])
        return self.piece_buckets[size]
