"""Our decode attention under several tilings, and torch's flash attention for prefill, over what this GPU can do.

    python benchmarks/gpu/kernels.py [--quick] [--json FILE [--resume] [--plot PNG]]

Heads as Llama-3-8B's (32 query, 8 KV, 128 wide), bf16, KV in shuffled blocks. Decode: bytes of K and V over time, as a
share of the measured copy bandwidth; the best tiling of each shape is what `decode_kernels.DEFAULT_TILING` should be.
Prefill: FLOPs of causal attention over time, as a share of the measured matrix rate.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from report.command import print_table
from rich.console import Console
from rich.progress import track

from pdmux_actor.executor.cuda.cuda_device import cuda_device_spec, open_cuda_device
from pdmux_actor.executor.cuda.decode_kernels import DEFAULT_TILING, DecodeTiling, decode_attention
from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.executor.cuda.flash_attention import activate_flash_attention
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_kernels import SplitList, split_list, target_splits
from profiler.specs import DeviceSpec

ROW_KEY = ("kernel", "batch", "tokens", "longest", "splits", "tile_tokens", "num_warps", "num_stages")
# Sequences, tokens of all but one, tokens of that one.
DECODES = (
    (32, 1024, 1024),
    (64, 512, 32768),
    (32, 8192, 8192),
    (128, 1024, 1024),
    (1, 8192, 8192),
    (1, 1024, 1024),
    (32, 1024, 16384),
)
PREFILLS = (2048, 8192)
TILINGS = (
    DEFAULT_TILING,
    *(
        tiling
        for tile in (32, 64, 128)
        for warps in (4, 8)
        for stages in (2, 3, 4)
        if (tiling := DecodeTiling(tile_tokens=tile, num_warps=warps, num_stages=stages)) != DEFAULT_TILING
    ),
)
Timed = Callable[[Callable[[], object]], float]
_COPIES = 4  # of the KV, read in turn: more than a cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    query: int = 32
    kv: int = 8
    dim: int = 128
    block_tokens: int = 32


class DecodeCase:
    """Sequences of so many tokens whose KV lies in shuffled blocks, several times over."""

    def __init__(self, lengths: Sequence[int], heads: Heads, device: torch.device, dtype: torch.dtype) -> None:
        batch = len(lengths)
        self._heads = heads
        rows_of = [-(-tokens // heads.block_tokens) for tokens in lengths]
        rows_each = max(rows_of)
        num_rows = sum(rows_of) * _COPIES
        blocks = torch.randperm(num_rows * heads.kv)
        self._table = blocks.view(num_rows, heads.kv).to(torch.int32).to(device)
        elements = heads.block_tokens * 2 * heads.dim
        self._pool = torch.randn(num_rows * heads.kv, elements, device=device, dtype=dtype)
        held = torch.arange(num_rows, dtype=torch.int32).split(rows_of * _COPIES)
        padded = torch.nn.utils.rnn.pad_sequence(held, batch_first=True).view(_COPIES, -1).to(device)
        self._rows = [padded[copy].contiguous() for copy in range(_COPIES)]
        self._stride = torch.tensor([rows_each], dtype=torch.int32, device=device)
        self._contexts = torch.tensor(lengths, dtype=torch.int32, device=device)
        self._query = torch.randn(batch, heads.query, heads.dim, device=device, dtype=dtype)
        self._turn = 0
        self._splits: dict[int, SplitList] = {}
        self.kv_bytes = sum(lengths) * heads.kv * 2 * heads.dim * dtype.itemsize

    def attend(self, num_splits: int, tiling: DecodeTiling) -> object:
        self._turn += 1
        if num_splits not in self._splits:  # a step makes it once for all layers: it is no part of a layer's time
            self._splits[num_splits] = split_list(self._contexts, num_splits)
        return decode_attention(
            self._query,
            self._pool,
            self._table,
            self._rows[self._turn % _COPIES],
            self._stride,
            self._contexts,
            layer=0,
            kv_heads=self._heads.kv,
            tokens_per_row=self._heads.block_tokens,
            splits=self._splits[num_splits],
            tiling=tiling,
        )


def prefill_work(tokens: int, heads: Heads, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    query = torch.randn(tokens, heads.query, heads.dim, device=device, dtype=dtype)
    key, value = (torch.randn(tokens, heads.kv, heads.dim, device=device, dtype=dtype) for _ in range(2))
    ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    chunk = ChunkExtent(first=0, length=tokens, context_tokens=tokens)
    attended = torch.empty_like(query)
    return lambda: varlen_attention(query, key, value, ends, ends, [chunk], attended)


def decode_keys(shape: tuple[int, int, int], heads: Heads, sms: int, tilings: Sequence[DecodeTiling]) -> Iterator[Row]:
    batch, tokens, longest = shape
    usual = target_splits(heads.kv, sms)
    for tiling in tilings:
        for splits in dict.fromkeys((usual, max(1, usual // 2), 2 * usual)):
            yield {
                "kernel": "decode",
                "batch": batch,
                "tokens": tokens,
                "longest": longest,
                "splits": splits,
                **asdict(tiling),
            }


def measure_all(
    kept: KeptRows,
    device: torch.device,
    spec: DeviceSpec,
    timed: Timed,
    *,
    heads: Heads,
    decodes: Sequence[tuple[int, int, int]] = DECODES,
    prefills: Sequence[int] = PREFILLS,
    tilings: Sequence[DecodeTiling] = TILINGS,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    for tokens in prefills:
        key: Row = {**dict.fromkeys(ROW_KEY, 1), "kernel": "prefill", "tokens": tokens}
        kept.attempt(key, lambda tokens=tokens: _prefill_row(tokens, heads, device, dtype, spec, timed))
    for shape in track(decodes, description="decode attention", console=Console(stderr=True)):
        wanted = [k for k in decode_keys(shape, heads, spec.num_sms, tilings) if kept.wants(**k)]
        if not wanted:
            continue
        batch, tokens, longest = shape
        case = DecodeCase([tokens] * (batch - 1) + [longest], heads, device, dtype)
        for key in wanted:
            kept.attempt(key, lambda key=key, case=case: _decode_row(case, key, spec, timed))


def _prefill_row(
    tokens: int, heads: Heads, device: torch.device, dtype: torch.dtype, spec: DeviceSpec, timed: Timed
) -> dict[str, object]:
    seconds = timed(prefill_work(tokens, heads, device, dtype))
    flops = 2.0 * heads.query * heads.dim * tokens**2
    return {"seconds": seconds, "share_of_peak": flops / seconds / spec.peak_flops_per_s}


def _decode_row(case: DecodeCase, key: Row, spec: DeviceSpec, timed: Timed) -> dict[str, object]:
    tiling = DecodeTiling(**{name: key[name] for name in ("tile_tokens", "num_warps", "num_stages")})
    try:
        seconds = timed(lambda: case.attend(key["splits"], tiling))
    except RuntimeError as error:  # a tiling that the GPU has no room for
        return {"seconds": None, "share_of_peak": 0.0, "error": str(error)[:200]}
    return {"seconds": seconds, "share_of_peak": case.kv_bytes / seconds / spec.memory_bandwidth_bytes_per_s}


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The fastest of each shape, and the default beside it."""
    chosen: list[Row] = []
    for shape in dict.fromkeys(map(_shape_of, rows)):
        same = [row for row in rows if _shape_of(row) == shape]
        best = max(same, key=lambda row: float(row["share_of_peak"]))
        chosen += [same[0]] if same[0] is best else [same[0], best]
    return chosen


def _shape_of(row: Row) -> tuple[object, ...]:
    return row["kernel"], row["batch"], row["tokens"], row["longest"]


def draw(figure: Any, rows: Sequence[Row]) -> None:
    labelled = [
        {
            **row,
            "title": "first row of a shape: as it is; second: the best",
            "bar": f"{row['kernel']} {row['batch']} x {row['tokens']} (one of {row['longest']}), "
            f"{row['splits']} splits, {row['tile_tokens']}/{row['num_warps']}/{row['num_stages']}",
        }
        for row in best_rows(rows)
    ]
    draw_bars(figure, labelled, group="title", bar="bar", value="share_of_peak", label="share of measured peak")


def cuda_timed(work: Callable[[], object]) -> float:
    """Median device time of one call; calls are timed eight at a time, so that the host is not what is measured."""
    for _ in range(2):
        work()
    times = []
    for _ in range(7):
        started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # about a millisecond, in which the host gets ahead
        started.record()
        for _ in range(8):
            work()
        ended.record()
        ended.synchronize()
        times.append(started.elapsed_time(ended) / 8e3)
    return statistics.median(times)


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    device = open_cuda_device()
    flash = activate_flash_attention(torch.nn.attention, torch.cuda.get_device_capability(device))
    spec = cuda_device_spec(device, step_sms=16)
    kept.note_gpu(spec, {"partitioned_by": "not partitioned", "prefill_attention": flash})
    with torch.inference_mode():
        measure_all(kept, device, spec, cuda_timed, heads=Heads(), decodes=DECODES[:2] if options.quick else DECODES)


def show(kept: KeptRows) -> None:
    rows = [{**row, "us": None if row["seconds"] is None else 1e6 * row["seconds"]} for row in best_rows(kept.rows)]
    columns = {name: f"{{{name}}}" for name in ROW_KEY} | {"us": "{us:.1f}", "share of peak": "{share_of_peak:.2f}"}
    print_table(rows, columns)


def main() -> None:
    run_script(make_parser(__doc__, quick="two shapes only", limit_s=300.0), ROW_KEY, measure_on_gpu, show, draw)


if __name__ == "__main__":
    main()
