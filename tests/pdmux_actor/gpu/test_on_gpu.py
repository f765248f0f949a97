"""The CUDA executor on a GPU against the CPU executor. Run alone: `pytest tests/pdmux_actor/gpu` (needs no Ray)."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from cpu_rig import CpuRig, make_prompt, outputs
from gpu import hot_path
from gpu.script import KeptRows
from gpu_rig import DEVICE, open_gpu_rig
from gpu_scenarios import write_model
from torch.nn import functional

from pdmux_actor.executor.cuda.decode_kernels import decode_attention
from pdmux_actor.executor.cuda.device_batch import ChunkExtent
from pdmux_actor.executor.cuda.kv_kernels import store_kv
from pdmux_actor.executor.cuda.prompt_attention import varlen_attention
from pdmux_actor.executor.cuda.split_kernels import split_list
from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.scheduling.launch import DecodeStep, Lane, Repartition

BLOCK_BYTES = 4096
LENGTHS = (1, 5, 18, 70)
NEW_TOKENS = 6
HEADS = {"llama": 4, "qwen2": 2, "qwen3": 6}

Scenario = Callable[[CpuRig, str], list[object]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        name: write_model(root / name, seed, model_type=name, hidden_size=128, num_heads=heads, head_dim=32)
        for seed, (name, heads) in enumerate(HEADS.items())
    }


@pytest.fixture(scope="module")
def rigs(checkpoints: Mapping[str, Path]) -> Iterator[tuple[CpuRig, CpuRig]]:
    pair = CpuRig(block_bytes=BLOCK_BYTES), open_gpu_rig(pool_mib=64, block_bytes=BLOCK_BYTES)
    pair[1].executor._pool.fill_(0xFF)  # NaN in every float type
    torch.cuda.synchronize()
    for model_type, folder in checkpoints.items():
        for rig in pair:
            rig.load(model_type, folder, dtype="float32")
    yield pair
    for rig in pair:
        rig.close()


def greedy(rig: CpuRig, model: str) -> list[object]:
    sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in LENGTHS]
    rig.prefill(sequences, layers_per_slice=1)
    rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=2)
    return outputs(sequences, NEW_TOKENS)


def chunked(rig: CpuRig, model: str) -> list[object]:
    sequences = [rig.sequence(model, make_prompt(length), NEW_TOKENS) for length in (10, 41)]
    rig.generate_chunked(sequences, NEW_TOKENS, chunk_tokens=8)
    return outputs(sequences, NEW_TOKENS)


def sampled(rig: CpuRig, model: str) -> list[object]:
    settings = ({"temperature": 0.8, "seed": 7}, {"temperature": 1.2, "top_p": 0.7, "top_k": 9, "seed": 8}, {})
    sequences = [rig.sequence(model, make_prompt(9 + i), NEW_TOKENS, **s) for i, s in enumerate(settings)]
    rig.prefill(sequences)
    rig.decode(sequences, NEW_TOKENS - 1, steps_per_launch=5)
    return outputs(sequences, NEW_TOKENS)


@pytest.mark.parametrize("scenario", [greedy, chunked, sampled])
@pytest.mark.parametrize("model", list(HEADS))
def test_tokens__fp32__are_those_of_the_cpu(rigs: tuple[CpuRig, CpuRig], model: str, scenario: Scenario) -> None:
    cpu, gpu = rigs

    assert scenario(gpu, model) == scenario(cpu, model)


def test_tokens__on_every_partition__are_those_of_the_whole_gpu(rigs: tuple[CpuRig, CpuRig]) -> None:
    gpu = rigs[1]
    device = gpu.executor.device
    expected = greedy(gpu, "llama")

    step = device.partition_granularity_sms
    for decode_sms in range(step, device.num_sms, step):
        gpu.executor.submit(Repartition(prefill_sms=device.num_sms - decode_sms, decode_sms=decode_sms))
        assert greedy(gpu, "llama") == expected, f"decode on {decode_sms} SMs"
    gpu.executor.submit(Repartition(prefill_sms=device.num_sms, decode_sms=0))
    gpu.executor._sms = dict.fromkeys(Lane, device.num_sms)


def top_logprobs(rig: CpuRig, model: str, length: int) -> dict[int, float]:
    """Of the first token after a prompt."""
    sequence = rig.sequence(model, make_prompt(length), 1, logprobs=20)
    ((token,),) = rig.run(rig.prefill_slices([sequence], 1000)[0])
    return dict(token.top)


@pytest.mark.parametrize("model_type", list(HEADS))
def test_logprobs__bf16__err_about_as_much_as_on_the_cpu(
    rigs: tuple[CpuRig, CpuRig], checkpoints: Mapping[str, Path], model_type: str
) -> None:
    cpu = rigs[0]
    rounded = f"{model_type}-bf16"
    for rig in rigs:
        rig.load(rounded, checkpoints[model_type], dtype="bfloat16")

    def error(reports: Mapping[int, float], exact: Mapping[int, float]) -> float:
        both = reports.keys() & exact.keys()
        assert len(both) > 10
        return max(abs(reports[token] - exact[token]) for token in both)

    for length in (9, 130):
        exact = top_logprobs(cpu, model_type, length)
        on_cpu, on_gpu = (error(top_logprobs(rig, rounded, length), exact) for rig in rigs)
        assert on_gpu < 3 * on_cpu + 0.02, f"{length} tokens: {on_gpu} on the GPU, {on_cpu} on the CPU"


def test_detach__model_that_comes_again__is_captured_again_with_the_same_tokens(
    rigs: tuple[CpuRig, CpuRig], checkpoints: Mapping[str, Path]
) -> None:
    gpu = open_gpu_rig(pool_mib=16, block_bytes=BLOCK_BYTES)
    produced = []
    for _ in range(2):
        gpu.load("llama", checkpoints["llama"], dtype="float32", max_rows=100)
        produced.append(greedy(gpu, "llama"))
        assert gpu.executor.graph_facts["graphs"] > 0
        gpu.executor.detach_model("llama")
        gpu._free_blocks = np.arange(gpu.executor.total_blocks)
    assert gpu.executor.graph_facts["graphs_that_failed"] == 0
    gpu.close()

    assert produced[0] == produced[1] == greedy(rigs[0], "llama")


def test_graphs__shapes_of_these_tests__were_captured_all(rigs: tuple[CpuRig, CpuRig]) -> None:
    gpu = rigs[1]
    greedy(gpu, "qwen3")

    facts = gpu.executor.graph_facts
    assert facts["graphs"] > 0
    assert facts["graphs_that_failed"] == 0
    assert 0 < facts["graph_bytes"] < 2 << 30


def test_lanes__prefill_beside_decode__both_give_the_tokens_that_each_gives_alone(rigs: tuple[CpuRig, CpuRig]) -> None:
    gpu = rigs[1]
    alone = greedy(gpu, "qwen2")
    decoding = [gpu.sequence("llama", make_prompt(n), 40) for n in (7, 12)]
    gpu.prefill(decoding)
    prompts = [gpu.sequence("qwen2", make_prompt(length), NEW_TOKENS) for length in LENGTHS]
    gpu.executor.submit(Repartition(prefill_sms=gpu.executor.device.num_sms - 16, decode_sms=16))
    slices = gpu.prefill_slices(prompts, 1)
    left = 30
    gpu.executor.submit(slices.pop(0))
    gpu.executor.submit(DecodeStep(model="llama", sequences=tuple(decoding)))
    while slices or left or gpu.executor._in_flight:
        for done in gpu.executor.wait(None):
            gpu.apply(done)
            if isinstance(done.launch, DecodeStep):
                left = max(0, left - 1)
                if left:
                    gpu.executor.submit(DecodeStep(model="llama", sequences=tuple(decoding)))
            elif slices:
                gpu.executor.submit(slices.pop(0))
    gpu.decode(prompts, NEW_TOKENS - 1, steps_per_launch=2)
    gpu.executor._sms = dict.fromkeys(Lane, gpu.executor.device.num_sms)

    assert outputs(prompts, NEW_TOKENS) == alone


@pytest.mark.parametrize("context", [1, 63, 700, 5000])
def test_decode_attention__bf16__within_its_rounding_of_fp32(context: int) -> None:
    torch.manual_seed(context)
    heads, kv_heads, dim, block_tokens = 32, 8, 128, 32
    num_rows = -(-context // block_tokens)
    pool = torch.full((num_rows * kv_heads, block_tokens * 2 * dim), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    table = torch.randperm(num_rows * kv_heads, device=DEVICE).view(num_rows, kv_heads).to(torch.int32)
    positions = torch.arange(context, dtype=torch.int32, device=DEVICE)
    key, value = (torch.randn(context, kv_heads, dim, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    query = torch.randn(1, heads, dim, device=DEVICE, dtype=torch.bfloat16)
    rows = torch.arange(num_rows, dtype=torch.int32, device=DEVICE)
    store_kv(pool, table, positions // block_tokens, positions, key, value, layer=0, tokens_per_row=block_tokens)

    contexts = torch.tensor([context], dtype=torch.int32, device=DEVICE)
    for splits in (1, 7, 32):
        attended = decode_attention(
            query,
            pool,
            table,
            rows,
            torch.tensor([num_rows], dtype=torch.int32, device=DEVICE),
            contexts,
            layer=0,
            kv_heads=kv_heads,
            tokens_per_row=block_tokens,
            splits=split_list(contexts, splits),
        )
        exact = functional.scaled_dot_product_attention(
            query.double().view(kv_heads, heads // kv_heads, dim),
            key.double().transpose(0, 1),
            value.double().transpose(0, 1),
        ).flatten()
        assert (attended[0].double() - exact).norm() / exact.norm() < 1e-2


def test_varlen_attention__bf16_chunks_with_prefixes__as_the_exact_one() -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim = 8, 2, 64
    sizes = [(5, 5), (1, 40), (33, 100)]  # (new, context): causal is aligned at the end
    first, chunks = 0, []
    for new, context in sizes:
        chunks.append(ChunkExtent(first=first, length=new, context_tokens=context))
        first += new
    total = sum(context for _, context in sizes)
    qkv = torch.randn(first, heads + 2 * kv_heads, dim, device=DEVICE, dtype=torch.bfloat16)
    query = qkv[:, :heads]  # strided, as the executor's
    key, value = (torch.randn(total, kv_heads, dim, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    ends = [
        torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
        for lengths in zip(*sizes, strict=True)
    ]

    attended = torch.empty_like(query, memory_format=torch.contiguous_format)
    varlen_attention(query, key, value, *ends, chunks, attended)
    attended = attended.flatten(1)

    begin = 0
    for chunk in chunks:
        own = slice(begin, begin + chunk.context_tokens)
        mask = torch.ones(chunk.length, chunk.context_tokens, dtype=torch.bool, device=DEVICE)
        mask = mask.tril(chunk.context_tokens - chunk.length)
        exact = functional.scaled_dot_product_attention(
            query[chunk.first : chunk.first + chunk.length].double().transpose(0, 1),
            key[own].double().transpose(0, 1).repeat_interleave(heads // kv_heads, 0),
            value[own].double().transpose(0, 1).repeat_interleave(heads // kv_heads, 0),
            attn_mask=mask,
        )
        ours = attended[chunk.first : chunk.first + chunk.length].double()
        expected = exact.transpose(0, 1).flatten(1)
        assert (ours - expected).norm() / expected.norm() < 1e-2
        begin += chunk.context_tokens


def test_hot_path__profiled_when_warm__allocates_nothing_and_waits_for_nothing() -> None:
    executor = open_cuda_executor(kv_pool_bytes=64 << 20, block_bytes=BLOCK_BYTES)
    sizes = {"batch": 4, "context": 40, "prompt": 64, "slices": 4, "layers": 1}

    assert hot_path.run(executor, "tiny", sizes, KeptRows(None, ("kernel",))) == {}
    executor.close()
