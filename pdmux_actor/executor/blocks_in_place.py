"""Keeps keys and values, and decodes over them, in the blocks where they lie: compiled kernels, nothing is gathered."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pdmux_actor.executor.kv_storage import KvView
from pdmux_actor.executor.packed_batch import DecodeGroup, PackedBatch
from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.compiled.kernels import CpuKernels, pointer_of
from pdmux_actor.models.compiled.panel_linear import PanelKernels


class BlocksInPlace:
    """One model's blocks, in bfloat16. The kernels find blocks in the row table itself, so that a launch prepares none.

    What lies beyond a sequence's last token is never read: no block need be cleared.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        view: KvView,
        row_table: npt.NDArray[np.int64],
        panels: PanelKernels | None = None,
    ) -> None:
        """`panels` attend for prompts; None: torch does."""
        assert row_table.flags.c_contiguous, "the kernels walk over the row table"
        assert row_table.dtype == np.int64, "the kernels read block ids of 64 bits"
        self._kernels = kernels
        self._panels = panels
        self._view = view
        # The attached model holds the row table beside this: it lives as long.
        self._table = (row_table.ctypes.data, row_table.shape[1])

    def keep(self, layer: int, batch: PackedBatch, key: Tensor, value: Tensor) -> None:
        """key, value: [tokens, kv_heads, head_dim], of all tokens of the batch."""
        key, value = _side_by_side(key), _side_by_side(value)
        tokens, kv_heads, head_dim = key.shape
        self._kernels.keep(
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            tokens,
            kv_heads,
            head_dim,
            *self._view.place,
            *self._table,
            layer * kv_heads,
            batch.token_rows.ctypes.data,
            batch.token_offsets.data_ptr(),
        )

    def attend(
        self, layer: int, group: DecodeGroup, query: Tensor, attended: Tensor, traits: AttentionTraits = PLAIN
    ) -> None:
        """query: [tokens, heads, head_dim], `attended`: [tokens, heads * head_dim], both of all tokens of the batch."""
        query = _side_by_side(query)
        _, heads, head_dim = query.shape
        sinks = None if traits.sinks is None else traits.sinks.float()
        kv_heads = self._view.kv_heads
        self._kernels.decode_attention(
            query[group.first :].data_ptr(),
            query.stride(0),
            *self._view.place,
            *self._table,
            layer * kv_heads,
            group.rows.ctypes.data,
            group.rows.shape[1],
            group.context_tokens.ctypes.data,
            len(group.context_tokens),
            kv_heads,
            heads // kv_heads,
            head_dim,
            self._view.tokens_per_row,
            head_dim**-0.5 if traits.scale is None else traits.scale,
            traits.window_tokens or 0,
            traits.softcap or 0.0,
            pointer_of(sinks),
            attended[group.first :].data_ptr(),
        )

    def serves_prompts(self, traits: AttentionTraits) -> bool:
        """Returns whether `attend_prompt` has such an attention."""
        return self._panels is not None and traits.is_fused

    def attend_prompt(
        self, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, traits: AttentionTraits = PLAIN
    ) -> None:
        """Does what PanelKernels.attend_prompt does, with heads as they come."""
        assert self._panels is not None, "`serves_prompts` was asked"
        self._panels.attend_prompt(
            _side_by_side(query), key, value, attended, scale=traits.scale, window_tokens=traits.window_tokens
        )


def _side_by_side(heads: Tensor) -> Tensor:
    """[tokens, heads, head_dim], of which those of a token are dense."""
    return heads if heads.stride()[1:] == (heads.shape[2], 1) else heads.contiguous()
