"""The decode step of one model at one batch size, over buffers that never move, so that it can be captured.

It feeds itself: the sampled token, the next position and the step counter stay on the device, so look-ahead steps run
back to back without the host (DuetServe §4.3).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_attention import DeviceKv
from pdmux_actor.executor.cuda.device_sampler import SamplingKind, SamplingRows, sample_rows
from pdmux_actor.executor.cuda.held_rows import HeldRows
from pdmux_actor.executor.cuda.host_stage import Arrays, HostStage, layout, views
from pdmux_actor.executor.cuda.shared_logits import SharedLogits
from pdmux_actor.executor.cuda.split_list import split_list, target_splits
from pdmux_actor.models.attention_traits import PLAIN, AttentionTraits
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.scheduling.sequence import TokenSequence

MAX_STEPS = 16
_PADDING = -1


class DecodeBucket:
    """`size` sequences at most; the rest are padding, which writes no KV and samples tokens that nobody reads."""

    def __init__(
        self, decoder: LayeredDecoder, kv: DeviceKv, size: int, max_rows: int, logits: SharedLogits | None = None
    ) -> None:
        """`max_rows` is the most rows that a sequence of the model can hold. `logits` None: a place of its own."""
        self._decoder = decoder
        self._kv = kv
        self.size = size
        self._shared_logits = logits or SharedLogits(size)
        self._logits: Tensor | None = None
        self._held_rows = HeldRows(size, max_rows)
        device = kv.pool.device
        most_begun = size * (MAX_STEPS // kv.tokens_per_row + 1)
        longest = {
            **self._fixed_arrays((), 1, SamplingRows.of((), num_steps=MAX_STEPS, num_rows=size)),
            "rows": np.zeros(size * max_rows, dtype=np.int32),
            "begun_rows": np.zeros(most_begun, dtype=np.int64),
            "begun_blocks": np.zeros((most_begun, kv.table.shape[1]), dtype=np.int32),
        }
        self._buffer = torch.zeros(layout(longest)[1], dtype=torch.uint8, device=device)
        self._inputs = views(self._buffer, longest)
        self._places = torch.arange(size, dtype=torch.int32, device=device)
        self.sampled = torch.zeros(MAX_STEPS, size, dtype=torch.int32, device=device)

    def sampling(self, sequences: Sequence[TokenSequence], steps: int) -> SamplingRows:
        """Returns the sampling of a launch of `steps` steps, padded to the bucket."""
        device = self._kv.pool.device
        return SamplingRows.of(sequences, steps=steps, num_steps=MAX_STEPS, num_rows=self.size, device=device)

    def load(
        self,
        stage: HostStage,
        sequences: Sequence[TokenSequence],
        steps: int,
        row_table: npt.NDArray[np.int64],
        sampling: SamplingRows,
    ) -> None:
        """Sends the inputs of `steps` steps, and the blocks of rows that these begin."""
        assert steps <= MAX_STEPS, f"a launch of {steps} steps; buffers hold {MAX_STEPS}"
        rows, row_stride = self._held_rows.of(sequences)
        begun = _begun_rows(sequences, steps, self._kv.tokens_per_row)
        read = _read_rows(sequences, rows, self._kv.tokens_per_row)
        if not self._kv.on_device[read].all():
            # Rows that no launch has written to: a measurement gives sequences a context that was never computed.
            self._kv.upload_missing(np.unique(read), row_table)
        arrays: Arrays = {
            **self._fixed_arrays(sequences, row_stride, sampling),
            "rows": rows.reshape(-1),
            "begun_rows": begun,
            "begun_blocks": row_table[begun].astype(np.int32),
        }
        self._send(stage, arrays, begun)

    def _send(self, stage: HostStage, arrays: Arrays, begun: npt.NDArray[np.int64]) -> None:
        sent = stage.send(arrays, self._buffer, ("rows", "begun_rows", "begun_blocks"))
        assert sent["rows"].data_ptr() == self._inputs["rows"].data_ptr(), "the captured step reads another place"
        self._kv.upload(begun, sent["begun_rows"], sent["begun_blocks"])

    def load_padding(self, stage: HostStage) -> None:
        """Inputs under which a step changes nothing but its own buffers."""
        no_rows = np.zeros((0, self._kv.table.shape[1]), dtype=np.int64)
        self.load(stage, (), 1, no_rows, self.sampling((), 1))

    def forward(self, decode_sms: int, adapters: AdapterBatch | None = None) -> None:
        """Computes `logits` of one step. With `adapters` it cannot be captured."""
        hidden = self._forward(target_splits(self._kv.kv_heads, decode_sms), adapters)
        self._logits = self._shared_logits.hold(self._decoder.logits(hidden))

    def sample(self, kind: SamplingKind) -> None:
        """Draws a token for each sequence from `logits`, into `sampled[step counter]`, and goes on to the next step."""
        counter = self._inputs["step"]
        uniforms = self._inputs["uniforms"].index_select(0, counter).squeeze(0)
        token_ids = sample_rows(self.logits, self._inputs, uniforms, kind)
        self.sampled.index_copy_(0, counter.long(), token_ids.unsqueeze(0))
        self.advance(token_ids)
        counter.add_(1)

    @property
    def logits(self) -> Tensor:
        """Holds what `forward` computed. Samplings that `sample` cannot do overwrite it, and then `advance`."""
        assert self._logits is not None, "no forward pass yet"
        return self._logits

    def advance(self, token_ids: Tensor) -> None:
        self._inputs["token_ids"].copy_(token_ids.clamp(min=0))
        self._advance_positions()

    def _advance_positions(self) -> None:
        positions = self._inputs["positions"]
        positions.add_((positions >= 0).to(torch.int32))

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Sampling parameters on the device."""
        return self._inputs

    def _forward(self, num_splits: int, adapters: AdapterBatch | None) -> Tensor:
        positions, row_stride, rows = (self._inputs[name] for name in ("positions", "row_stride", "rows"))
        active = positions >= 0
        contexts = positions + 1  # padding: 0
        known = positions.clamp(min=0)
        row_places = self._places * row_stride + torch.div(known, self._kv.tokens_per_row, rounding_mode="floor")
        splits = split_list(contexts, num_splits)
        token_rows = torch.where(active, rows.index_select(0, row_places), _PADDING)

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
            self._kv.store(layer, token_rows, known, key, value)
            return self._kv.attend_decodes(layer, traits.scaled(query), rows, row_stride, contexts, splits)

        hidden, rotary = self._decoder.start(self._inputs["token_ids"], known)
        return self._decoder.forward_layers(hidden, rotary, attention, 0, self._decoder.spec.num_layers, adapters)

    def _fixed_arrays(
        self, sequences: Sequence[TokenSequence], row_stride: int, sampling: SamplingRows
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays whose sizes depend on the bucket only: what follows them in the buffer stays in place."""
        padding = self.size - len(sequences)
        return {
            "step": np.zeros(1, dtype=np.int32),
            "row_stride": np.array([row_stride], dtype=np.int32),
            "token_ids": np.array([s.token_ids[-1] for s in sequences] + [0] * padding, dtype=np.int32),
            "positions": np.array([len(s.token_ids) - 1 for s in sequences] + [_PADDING] * padding, dtype=np.int32),
            **sampling.arrays,
        }


def _read_rows(
    sequences: Sequence[TokenSequence], rows: npt.NDArray[np.int32], tokens_per_row: int
) -> npt.NDArray[np.int32]:
    """Those of `rows` (padded) that hold a sequence's context. The others are begun by later steps, with which their
    blocks are sent.
    """
    context_tokens = np.array([len(s.token_ids) - 1 for s in sequences], dtype=np.int64)
    num_read = -(-context_tokens // tokens_per_row)
    return rows[: len(sequences)][np.arange(rows.shape[1]) < num_read[:, None]]


def _begun_rows(sequences: Sequence[TokenSequence], steps: int, tokens_per_row: int) -> npt.NDArray[np.int64]:
    """Rows whose first token one of the next `steps` steps writes."""
    begun = []
    for sequence in sequences:
        position = len(sequence.token_ids) - 1
        first = -(-position // tokens_per_row)
        begun += sequence.rows[first : (position + steps - 1) // tokens_per_row + 1]
    return np.array(begun, dtype=np.int64)
