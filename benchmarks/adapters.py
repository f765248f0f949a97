"""What LoRA adapters cost: a decode step of a batch of 1, 8 and 32 adapters beside the same of their base alone, a
prefill, and the time until an adapter that is not loaded says its first token.

    python benchmarks/adapters.py [--json FILE] [--quick] [--dtype bfloat16] [--rank 16]

On the CPU executor, a random Llama of 16 layers and 100 M parameters, adapters of all seven projections. Steps take
turns, launches made by hand; a ratio is that of each turn. The cold adapter comes to an engine in a process of its own,
as a lease brings it: from the order to load it to the first token of a request of 64 tokens.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from engines.hand_made_launches import HandMadeLaunches
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from report.command import make_parser, print_table, ratio_of_turns, write_report
from report.machine_facts import machine_facts
from safetensors.torch import save_file

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.sequence import AdapterInUse, TokenSequence
from pdmux_actor.serving.commands import EngineSettings
from profiler.adapter_sites import projection_shapes
from profiler.specs import ModelSpec


def write_adapter(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Path:
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(spec.num_layers):
        for projection, (size_out, size_in) in projection_shapes(spec).items():
            owner = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{owner}.{projection}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, size_in, generator=generator) * 0.01
            tensors[f"{name}.lora_B.weight"] = torch.randn(size_out, rank, generator=generator) * 0.01
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


NUM_LAYERS = 16
SEQUENCES = 32
CONTEXT_TOKENS = 128
PROMPT_TOKENS = 256
COUNTS = (1, 8, 32)
BLOCK_BYTES = 8192
SLO = Slo(ttft_s=60.0, tbt_s=60.0)
COLUMNS: Mapping[str, str] = {
    "launch": "{launch}",
    "adapters": "{adapters}",
    "base ms": "{base_ms:.2f}",
    "with adapters ms": "{adapted_ms:.2f}",
    "ratio (quartiles)": "{ratio:.2f} ({ratio_low:.2f}-{ratio_high:.2f})",
}


def adapted(sequences: Sequence[TokenSequence], names: Sequence[str], base: str) -> list[TokenSequence]:
    """Gives the sequences to the adapters in turn."""
    for index, sequence in enumerate(sequences):
        name = names[index % len(names)]
        sequence.request = replace(sequence.request, model=name)
        sequence.adapter = AdapterInUse(base, name)
    return list(sequences)


def by_turns(launches: HandMadeLaunches, names: Sequence[str], turns: int, *, prefills: bool) -> dict[str, float]:
    lengths = [PROMPT_TOKENS] if prefills else [CONTEXT_TOKENS] * SEQUENCES
    plain = launches.sequences(lengths)
    with_adapters = adapted(launches.sequences(lengths), names, launches.info.model)
    make = launches.prefill_launch if prefills else launches.decode_launch
    taken_s: dict[str, list[float]] = {"base": [], "adapted": []}
    for turn in range(turns + 2):
        order = [("base", plain), ("adapted", with_adapters)]
        for name, batch in order if turn % 2 else reversed(order):
            (step_s,) = launches.time_s(make(batch), 1, warm_ups=0)
            if turn > 1:
                taken_s[name].append(step_s)
    launches.free([*plain, *with_adapters])
    return {
        "base_ms": statistics.median(taken_s["base"]) * 1e3,
        "adapted_ms": statistics.median(taken_s["adapted"]) * 1e3,
        **ratio_of_turns(taken_s["adapted"], taken_s["base"]),
    }


async def first_tokens(base: Path, adapter: Path, dtype: str, turns: int) -> dict[str, float]:
    """Seconds until the first token of an adapter that is not loaded, of one that is, and until it was loaded."""
    engine = NativeEngine(EngineSettings(kind="torch_cpu", kv_pool_bytes=256 << 20, block_bytes=BLOCK_BYTES))
    await engine.start()
    cold, warm, loads = [], [], []
    try:
        await engine.add_model(ModelAssignment(model="m", source=str(base), quota_blocks=2000, slo=SLO, dtype=dtype))
        sql = ModelAssignment(model="sql", source=str(adapter), quota_blocks=2000, slo=SLO, base="m")
        for turn in range(turns + 1):
            began_s = time.perf_counter()
            await engine.add_model(sql)
            loaded_s = time.perf_counter()
            await first_token(engine, f"cold-{turn}")
            told_s = time.perf_counter()
            await first_token(engine, f"warm-{turn}")
            if turn:
                loads.append(loaded_s - began_s)
                cold.append(told_s - began_s)
                warm.append(time.perf_counter() - told_s)
            await engine.remove_model("sql")
    finally:
        await engine.stop()
    figures = {"load_ms": loads, "cold_ms": cold, "warm_ms": warm}
    return {name: statistics.median(values) * 1e3 for name, values in figures.items()}


async def first_token(engine: NativeEngine, request_id: str) -> None:
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    prompt = tuple((7 * i + len(request_id)) % 600 + 20 for i in range(64))
    engine.submit(
        GenerateRequest(
            request_id=request_id,
            model="sql",
            prompt_token_ids=prompt,
            sampling=sampling,
            slo=SLO,
            cache_salt=request_id,
        )
    )
    async for events in engine.events():
        if any(event.request_id == request_id and event.finish for event in events):
            return


def main() -> None:
    parser = make_parser(__doc__, quick="5 turns instead of 40")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rank", type=int, default=16)
    args = parser.parse_args()
    turns = 5 if args.quick else 40
    base = llama_checkpoint(DEFAULT_CACHE, num_layers=NUM_LAYERS)
    executor = TorchCpuExecutor(kv_pool_bytes=512 << 20, block_bytes=BLOCK_BYTES, default_dtype=args.dtype)
    info = executor.load_model(ModelSource(model="m", source=str(base), max_model_len=2048))
    launches = HandMadeLaunches(executor, info)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        names: list[str] = []
        for count in COUNTS:
            for index in range(len(names), count):
                adapter = write_adapter(Path(folder) / f"a{index}", info.spec, args.rank, index)
                executor.load_adapter(f"a{index}", "m", str(adapter), revision=None)
                names.append(f"a{index}")
            print(f"{count} adapters", file=sys.stderr)
            decode = by_turns(launches, names, turns, prefills=False)
            rows.append({"launch": f"decode of {SEQUENCES}", "adapters": count, **decode})
        prefill = by_turns(launches, names[:1], turns, prefills=True)
        rows.append({"launch": f"prefill of {PROMPT_TOKENS}", "adapters": 1, **prefill})
        executor.close()
        cold = asyncio.run(first_tokens(base, Path(folder) / "a0", args.dtype, turns))
    print_table(rows, COLUMNS)
    told = "an adapter's first token: {cold_ms:.0f} ms cold, of it {load_ms:.0f} ms to load, {warm_ms:.0f} ms warm"
    print(told.format(**cold))
    write_report(args.json, machine_facts(), rows, dtype=args.dtype, rank=args.rank, cold=cold)


if __name__ == "__main__":
    main()
