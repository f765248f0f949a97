"""The decode step of one model at one batch size, over buffers that never move, so that it can be captured.

It feeds itself: the sampled token, the next position and the step counter stay on the device, so look-ahead steps run
back to back without the host (DuetServe §4.3). Sequences' rows stay there, too: a launch sends those that are new. One
that goes on where the bucket's last one ended sends nothing else.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.cuda.device_kv import DeviceKv
from pdmux_actor.executor.cuda.device_sampler import SamplingKind, SamplingRows, output_counts, sample_rows
from pdmux_actor.executor.cuda.held_rows import HeldRows, NewRows
from pdmux_actor.executor.cuda.host_reads import BatchOrder
from pdmux_actor.executor.cuda.host_stage import Arrays, HostStage, layout, views
from pdmux_actor.executor.cuda.shared_logits import SharedLogits
from pdmux_actor.executor.cuda.split_kernels import split_list, target_splits
from pdmux_actor.models.attention import PLAIN, AttentionTraits
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.scheduling.sequence import TokenSequence

MAX_STEPS = 16
_PADDING = -1
_READ_ARRAYS = ("row_places", "new_rows", "begun_rows", "begun_blocks")


class DecodeBucket:
    """`size` sequences at most; the rest are padding, which writes no KV and samples tokens that nobody reads."""

    goes_on = True  # whether what the last launch left on the device may be gone on with

    def __init__(
        self, decoder: LayeredDecoder, kv: DeviceKv, size: int, max_rows: int, logits: SharedLogits | None = None
    ) -> None:
        """`max_rows` is the most rows that a sequence of the model can hold. `logits` None: a place of its own."""
        self._decoder = decoder
        self._kv = kv
        self.size = size
        self._shared_logits = logits or SharedLogits(size)
        self._logits: Tensor | None = None
        self.order = BatchOrder()
        self._held_rows = HeldRows(size, max_rows)
        device = kv.pool.device
        fixed = self._fixed_arrays((), SamplingRows.of((), num_rows=size))
        self._fixed_bytes = layout(fixed)[1]
        self._buffer = torch.zeros(self._fixed_bytes, dtype=torch.uint8, device=device)
        self._inputs = views(self._buffer, fixed)
        self._rows = torch.zeros(size * max_rows, dtype=torch.int32, device=device)
        self._row_stride = torch.full((1,), max_rows, dtype=torch.int32, device=device)
        self._places = torch.arange(0, size * max_rows, max_rows, dtype=torch.int32, device=device)
        self.sampled = torch.zeros(MAX_STEPS, size, dtype=torch.int32, device=device)
        self._sampling: tuple[Sequence[TokenSequence], SamplingRows] | None = None
        self._left: tuple[Sequence[TokenSequence], npt.NDArray[np.int64]] | None = None
        """Sequences, and the tokens known of each once what is enqueued has ended."""
        self._loaded: tuple[Sequence[TokenSequence], npt.NDArray[np.int64]] = (), np.zeros(0, dtype=np.int64)

    def sampling(self, sequences: Sequence[TokenSequence]) -> SamplingRows:
        """Returns the sampling of a launch, padded to the bucket."""
        if self._sampling is not None and self._sampling[0] == sequences:
            return self._sampling[1]
        rows = SamplingRows.of(sequences, num_rows=self.size, device=self._kv.pool.device)
        self._sampling = (sequences, rows) if rows.is_plain else None
        return rows

    def load(
        self,
        stage: HostStage,
        sequences: Sequence[TokenSequence],
        steps: int,
        row_table: npt.NDArray[np.int64],
        sampling: SamplingRows,
        ahead: int = 0,
    ) -> None:
        """Sends the inputs of `steps` steps, and the blocks of rows that these begin. `ahead` tokens of each sequence
        are on their way in the launch before, which is the bucket's last one.
        """
        assert steps <= MAX_STEPS, f"a launch of {steps} steps; buffers hold {MAX_STEPS}"
        left, self._left = self._left, None  # nobody knows what a launch that fails leaves
        num_tokens = np.fromiter([len(sequence.token_ids) for sequence in sequences], dtype=np.int64) + ahead
        self._loaded = sequences, num_tokens
        try:
            arrays = self._row_arrays(sequences, num_tokens, steps, row_table)
            goes_on = left is not None and left[0] == sequences and np.array_equal(left[1], num_tokens)
            if sampling.is_plain and self.goes_on and goes_on:
                self._inputs["step"].zero_()
            else:
                assert not ahead, "the tokens that it goes on with are on the device only"
                arrays = {**self._fixed_arrays(sequences, sampling), **arrays}
            self._send(stage, arrays)
        except BaseException:
            self._held_rows.forget()
            raise

    def leave(self, steps: int) -> None:
        """All `steps` steps of what was loaded last are enqueued: their last tokens and positions are what another
        launch may go on with.
        """
        sequences, num_tokens = self._loaded
        self._left = sequences, num_tokens + steps

    def _row_arrays(
        self,
        sequences: Sequence[TokenSequence],
        num_tokens: npt.NDArray[np.int64],
        steps: int,
        row_table: npt.NDArray[np.int64],
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Those that the device lacks."""
        new = self._held_rows.take(sequences)
        tokens_per_row = self._kv.tokens_per_row
        self._check_sent(new, num_tokens, row_table)
        begun = _begun_rows(self._held_rows.table, num_tokens - 1, steps, tokens_per_row)
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        if len(new.places):
            arrays |= {"row_places": new.places, "new_rows": new.rows}
        if len(begun):
            arrays |= {"begun_rows": begun, "begun_blocks": row_table[begun].astype(np.int32)}
        return arrays

    def _check_sent(self, new: NewRows, num_tokens: npt.NDArray[np.int64], row_table: npt.NDArray[np.int64]) -> None:
        """Rows that hold a context were sent by whoever wrote to them first. A measurement gives sequences a context
        that was never computed: its rows are sent here.
        """
        if not len(new.places):
            return
        # The row of the token that comes next may be begun by this launch.
        num_read = -(-(num_tokens - 1) // self._kv.tokens_per_row)
        place, row = np.divmod(new.places, self._held_rows.max_rows)
        read = new.rows[row < num_read[place]]
        if not self._kv.on_device[read].all():
            self._kv.upload_missing(np.unique(read), row_table)

    def _send(self, stage: HostStage, arrays: Arrays) -> None:
        if not arrays:
            return
        received = torch.empty(layout(arrays)[1], dtype=torch.uint8, device=self._buffer.device)
        sent = stage.send(arrays, received, _READ_ARRAYS)
        if "positions" in arrays:
            self._buffer.copy_(received[: self._fixed_bytes])  # where a captured step reads them
        if "new_rows" in arrays:
            self._rows.index_copy_(0, sent["row_places"], sent["new_rows"])
        if "begun_rows" in arrays:
            begun = np.asarray(arrays["begun_rows"], dtype=np.int64)
            self._kv.upload(begun, sent["begun_rows"], sent["begun_blocks"])

    def load_padding(self, stage: HostStage) -> None:
        """Inputs under which a step changes nothing but its own buffers."""
        no_rows = np.zeros((0, self._kv.table.shape[1]), dtype=np.int64)
        self.load(stage, (), 1, no_rows, self.sampling(()))

    def forward(self, decode_sms: int, adapters: AdapterBatch | None = None) -> None:
        """Computes `logits` of one step. With `adapters` it cannot be captured."""
        hidden = self._forward(target_splits(self._kv.kv_heads, decode_sms), adapters)
        self._logits = self._shared_logits.hold(self._decoder.logits(hidden))

    def sample(self, kind: SamplingKind) -> None:
        """Draws a token for each sequence from `logits`, into `sampled[step counter]`, and goes on to the next step."""
        counter = self._inputs["step"]
        token_ids = sample_rows(self.logits, self._inputs, kind)
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
        self._inputs["output_counts"].add_(1)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Sampling parameters on the device, and output tokens so far."""
        return self._inputs

    def _forward(self, num_splits: int, adapters: AdapterBatch | None) -> Tensor:
        positions, row_stride, rows = self._inputs["positions"], self._row_stride, self._rows
        active = positions >= 0
        contexts = positions + 1  # padding: 0
        known = positions.clamp(min=0)
        row_places = self._places + torch.div(known, self._kv.tokens_per_row, rounding_mode="floor")
        splits = split_list(contexts, num_splits)
        token_rows = torch.where(active, rows.index_select(0, row_places), _PADDING)

        def attention(layer: int, query: Tensor, key: Tensor, value: Tensor, traits: AttentionTraits = PLAIN) -> Tensor:
            self._kv.store(layer, token_rows, known, key, value)
            return self._kv.attend_decodes(layer, traits.scaled(query), rows, row_stride, contexts, splits)

        hidden, rotary = self._decoder.start(self._inputs["token_ids"], known)
        return self._decoder.forward_layers(hidden, rotary, attention, 0, self._decoder.spec.num_layers, adapters)

    def _fixed_arrays(
        self, sequences: Sequence[TokenSequence], sampling: SamplingRows
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays whose sizes depend on the bucket only."""
        padding = self.size - len(sequences)
        return {
            "step": np.zeros(1, dtype=np.int32),
            "token_ids": np.array([s.token_ids[-1] for s in sequences] + [0] * padding, dtype=np.int32),
            "positions": np.array([len(s.token_ids) - 1 for s in sequences] + [_PADDING] * padding, dtype=np.int32),
            "output_counts": output_counts(sequences, self.size),
            **sampling.arrays,
        }


def _begun_rows(
    table: npt.NDArray[np.int32], positions: npt.NDArray[np.int64], steps: int, tokens_per_row: int
) -> npt.NDArray[np.int64]:
    """Rows, of sequences' rows in `table`, whose first token one of the next `steps` steps writes."""
    before, last = (positions - 1) // tokens_per_row, (positions + steps - 1) // tokens_per_row
    begun = [table[place, before[place] + 1 : last[place] + 1] for place in np.flatnonzero(last > before)]
    return np.concatenate(begun).astype(np.int64) if begun else np.zeros(0, dtype=np.int64)
