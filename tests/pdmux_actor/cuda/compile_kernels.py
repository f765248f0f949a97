"""Compiles every Triton kernel for a GPU that is not here, with the arguments that the product's calls give it.

Run as a program, outside Triton's interpreter: prints `{kernel: [{"regs", "stack_bytes", "shared_bytes"}, ...]}`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from gpu.sm_census import SmCensus

from pdmux_actor.executor.cuda.ban_kernels import ban_tokens
from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.kv_kernels import gather_kv, store_kv
from pdmux_actor.executor.cuda.sampling_kernels import draw_rows, uniform_numbers
from pdmux_actor.executor.cuda.split_kernels import split_list, target_splits
from pdmux_actor.models.operators import HeadNorms
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.models.workspace import LaneArena, Workspace

SMS = 132
BLOCK_BYTES = 16 * 1024
LEAST_SHARED_MEMORY = 89  # the capability where wide heads are most likely not to fit


class AbsentGpu:
    """What Triton asks of a driver before it launches."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def call_all(heads: int, kv_heads: int, head_dim: int, mlp: int, dtype: torch.dtype, has_norms: bool) -> None:
    """As one layer of a model with these sizes."""
    tokens, layers = 3, 4
    tokens_per_row = BLOCK_BYTES // (2 * head_dim * dtype.itemsize)
    pool = torch.zeros(8, BLOCK_BYTES, dtype=torch.uint8).view(dtype)
    table = torch.zeros(2, layers * kv_heads, dtype=torch.int32)
    rows, contexts, stride = (torch.zeros(n, dtype=torch.int32) for n in (tokens, tokens, 1))
    qkv = torch.zeros(tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)
    rotary = torch.zeros(9, 2, head_dim, dtype=dtype).index_select(0, rows).transpose(0, 1).unsqueeze(2)
    norms = HeadNorms(query=qkv[0, 0].clone(), key=qkv[0, 0].clone()) if has_norms else None
    workspace = Workspace()
    operators = TritonOperators(workspace)
    with workspace.using(LaneArena(torch.device("cpu"))), workspace.passing():
        hidden = torch.zeros(tokens, heads * head_dim, dtype=dtype)
        operators.rms_norm(hidden, hidden[0].clone(), 1e-6)
    operators.rotate(qkv[:, : heads + kv_heads], rotary, norms, heads, 1e-6)
    operators.silu_product(torch.zeros(tokens, 2 * mlp, dtype=dtype))
    key, value = qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    for layer in (0, layers - 1):
        store_kv(pool, table, rows, rows, key, value, layer=layer, tokens_per_row=tokens_per_row)
    gather_kv(pool, table, rows, rows, layer=1, kv_heads=kv_heads, head_dim=head_dim)
    for sms in (16, SMS):
        decode_attention(
            qkv[:, :heads],
            pool,
            table,
            rows,
            stride,
            contexts,
            layer=1,
            kv_heads=kv_heads,
            tokens_per_row=tokens_per_row,
            splits=split_list(contexts, target_splits(kv_heads, sms)),
        )


def resources(kernel: Any) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        listing = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)], capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", listing))
    return {
        "regs": int(found["REG"]),
        "stack_bytes": int(found["STACK"]),
        "shared_bytes": kernel.metadata.shared,
    }


def main(capability: int) -> None:
    driver.set_active(AbsentGpu(capability))
    compiled: dict[str, list[Any]] = defaultdict(list)
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, **options: Any) -> Any:
        kernel = run(self, *args, **{**options, "warmup": True})
        compiled[self.__name__].append(kernel)
        return kernel

    JITFunction.run = compile_only
    call_all(32, 8, 128, 14336, torch.bfloat16, has_norms=False)
    call_all(32, 8, 64, 8192, torch.bfloat16, has_norms=True)
    call_all(6, 2, 32, 256, torch.float32, has_norms=True)  # tests/pdmux_actor/gpu
    if capability == LEAST_SHARED_MEMORY:
        call_all(8, 1, 256, 4096, torch.bfloat16, has_norms=False)  # the widest heads that there are
        call_all(32, 8, 128, 14336, torch.float32, has_norms=False)
    per_row = torch.zeros(3, dtype=torch.float64)
    draw_rows(torch.zeros(3, 128_256), per_row.float(), per_row.long(), per_row, per_row.int(), per_row, per_row)
    uniform_numbers(per_row.long(), per_row.int())
    ban_tokens(torch.zeros(3, 128_256), torch.zeros(3, 4008, dtype=torch.int32), per_row.int())
    SmCensus(torch.device("cpu")).take()
    report = {name: [resources(k) for k in {k.hash: k for k in found}.values()] for name, found in compiled.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
