"""The Triton kernels against plain torch, in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="Triton has no build for this platform")

from pdmux_actor.executor.cuda.decode_kernels import DEFAULT_TILING, decode_attention
from pdmux_actor.executor.cuda.kv_kernels import gather_kv, store_kv
from pdmux_actor.executor.cuda.split_kernels import split_list, target_splits

KV_HEADS = 2
LAYERS = 3


class PoolOfNaN:
    """A pool whose unwritten bytes are NaN, and sequences in shuffled blocks."""

    def __init__(self, head_dim: int, tokens_per_row: int, contexts: list[int], dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(head_dim)
        self.tokens_per_row = tokens_per_row
        num_rows = [-(-context // tokens_per_row) for context in contexts]
        self.row_stride = max(max(num_rows), 1) + 1
        total_rows = sum(num_rows)
        columns = LAYERS * KV_HEADS
        blocks = torch.randperm(total_rows * columns + 5, generator=generator)
        self.table = blocks[: total_rows * columns].view(-1, columns).to(torch.int32)
        slack = 3
        self.pool = torch.full((len(blocks), tokens_per_row * 2 * head_dim + slack), float("nan"), dtype=dtype)
        self.rows = torch.full((len(contexts), self.row_stride), -1, dtype=torch.int32)
        order = torch.randperm(total_rows, generator=generator).to(torch.int32)
        for i, count in enumerate(num_rows):
            self.rows[i, :count], order = order[:count], order[count:]
        self.keys = [torch.randn(c, KV_HEADS, head_dim, generator=generator).to(dtype) for c in contexts]
        self.values = [torch.randn(c, KV_HEADS, head_dim, generator=generator).to(dtype) for c in contexts]

    def token_rows(self, sequence: int) -> torch.Tensor:
        positions = torch.arange(len(self.keys[sequence]))
        return self.rows[sequence][positions // self.tokens_per_row]

    def store(self, layer: int) -> None:
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            positions = torch.arange(len(key), dtype=torch.int32)
            store_kv(
                self.pool,
                self.table,
                self.token_rows(i),
                positions,
                key,
                value,
                layer=layer,
                tokens_per_row=self.tokens_per_row,
            )


@pytest.mark.parametrize("target", [1, 3])
@pytest.mark.parametrize(
    ("head_dim", "group", "tokens_per_row", "dtype"),
    # The interpreter multiplies no bfloat16 (numpy has none).
    [(32, 1, 8, torch.float32), (64, 4, 16, torch.float32), (24, 3, 5, torch.float32), (64, 2, 16, torch.float16)],
)
def test_decode_attention__shuffled_blocks_amid_nan__as_sdpa(
    head_dim: int, group: int, tokens_per_row: int, dtype: torch.dtype, target: int
) -> None:
    contexts = [1, 150, 64, 0]
    state = PoolOfNaN(head_dim, tokens_per_row, contexts, dtype)
    state.store(layer=1)
    query = torch.randn(len(contexts), KV_HEADS * group, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)

    attended = decode_attention(
        query,
        state.pool,
        state.table,
        state.rows,
        torch.tensor([state.row_stride], dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        layer=1,
        kv_heads=KV_HEADS,
        tokens_per_row=tokens_per_row,
        splits=split_list(torch.tensor(contexts, dtype=torch.int32), target),
    )

    for i, context in enumerate(contexts):
        if context == 0:
            assert torch.equal(attended[i], torch.zeros_like(attended[i]))
            continue
        grouped = query[i].view(KV_HEADS, group, head_dim)
        expected = functional.scaled_dot_product_attention(
            grouped.float(), state.keys[i].transpose(0, 1).float(), state.values[i].transpose(0, 1).float()
        )
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(attended[i].float(), expected.flatten(), rtol=tolerance, atol=tolerance)


def test_gather_kv__what_was_stored__comes_back() -> None:
    state = PoolOfNaN(16, 4, [11, 6], torch.float32)
    state.store(layer=2)
    offsets = torch.arange(11, dtype=torch.int32) % 4

    key, value = gather_kv(
        state.pool, state.table, state.token_rows(0), offsets, layer=2, kv_heads=KV_HEADS, head_dim=16
    )

    assert torch.equal(key, state.keys[0])
    assert torch.equal(value, state.values[0])


def test_store_kv__padding_row__writes_nothing() -> None:
    state = PoolOfNaN(16, 4, [4], torch.float32)

    store_kv(
        state.pool,
        state.table,
        torch.full((4,), -1, dtype=torch.int32),
        torch.arange(4, dtype=torch.int32),
        state.keys[0],
        state.values[0],
        layer=0,
        tokens_per_row=4,
    )

    assert bool(state.pool.isnan().all())


def test_decode_attention__more_splits_than_are_joined_at_once__as_sdpa() -> None:
    contexts = [40, 128 * 33]
    state = PoolOfNaN(16, 64, contexts, torch.float32)
    state.store(layer=0)
    query = torch.randn(2, KV_HEADS, 16, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor(contexts, dtype=torch.int32)
    splits = split_list(lengths, 34)
    assert splits.firsts.tolist() == [0, 1, 34]

    attended = decode_attention(
        query,
        state.pool,
        state.table,
        state.rows,
        torch.tensor([state.row_stride], dtype=torch.int32),
        lengths,
        layer=0,
        kv_heads=KV_HEADS,
        tokens_per_row=64,
        splits=splits,
    )

    for i in range(2):
        expected = functional.scaled_dot_product_attention(
            query[i][:, None], state.keys[i].transpose(0, 1), state.values[i].transpose(0, 1)
        )
        torch.testing.assert_close(attended[i], expected.flatten(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("contexts", "counts"),
    [
        # By the layer on an H200 with 8 KV heads: 44 us in one split, 49 in two.
        ([1025] * 32, [1] * 32),
        # Two splits make a second wave that is nearly empty (306 us), three make two full ones (260).
        ([8193] * 32, [3] * 32),
        # Even splits of the whole batch's tokens would have 17 of the long one: it takes as long as they do.
        ([513] * 63 + [32769, 0, 0], [1] * 63 + [29, 0, 0]),
        ([8192], [32]),
    ],
)
def test_split_list__batches_on_132_sms__fill_whole_waves(contexts: list[int], counts: list[int]) -> None:
    target = target_splits(8, 132)
    assert target == 33

    splits = split_list(torch.tensor(contexts, dtype=torch.int32), target)

    assert splits.firsts.diff().tolist() == counts
    listed = splits.sequences[: int(splits.firsts[-1])]
    assert listed.bincount(minlength=len(contexts)).tolist() == counts
    assert set(splits.sequences[len(listed) :].tolist()) == {len(contexts)}  # no sequence: these programs end at once


@pytest.mark.parametrize("contexts", [[1], [0, 0], [64] * 40, [1, 5000, 3, 0, 700], [8192], [300] * 300])
@pytest.mark.parametrize("target", [1, 7, 33])
def test_split_list__any_batch__fits_the_grid_and_covers_every_sequence(contexts: list[int], target: int) -> None:
    splits = split_list(torch.tensor(contexts, dtype=torch.int32), target)

    counts = splits.firsts.diff().tolist()
    assert [count > 0 for count in counts] == [context > 0 for context in contexts]
    assert sum(counts) <= len(splits.sequences)


def test_tiling__wide_heads__takes_fewer_tokens_at_once() -> None:
    head_bytes = [64 * 2, 128 * 2, 128 * 4, 256 * 2, 256 * 4]

    assert [DEFAULT_TILING.fitted(size).tile_tokens for size in head_bytes] == [128, 128, 64, 64, 32]
