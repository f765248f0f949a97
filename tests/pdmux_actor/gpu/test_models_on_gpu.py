"""Models of other kinds on a GPU against the CPU: adapters, quantised, run by transformers' code, asleep, too large."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs
from gpu_rig import DEVICE, open_gpu_rig
from gpu_scenarios import write_model
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers

from pdmux_actor.errors import ModelTooLarge

BLOCK_BYTES = 4096
LENGTHS = (1, 5, 18, 70)
NEW_TOKENS = 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "llama"
    return write_model(folder, 1, model_type="llama", hidden_size=192, num_heads=4, head_dim=32)


@pytest.fixture
def pair() -> Iterator[tuple[CpuRig, CpuRig]]:
    rigs = CpuRig(block_bytes=BLOCK_BYTES), open_gpu_rig(pool_mib=64, block_bytes=BLOCK_BYTES)
    rigs[1].executor._pool.fill_(0xFF)  # NaN in every float type
    torch.cuda.synchronize()
    yield rigs
    for rig in rigs:
        rig.close()


def greedy(rig: CpuRig, names: Mapping[str, str | None], vocab_size: int = 640) -> list[list[int]]:
    """Of models by name, each with its base where it is an adapter: prompts in slices, steps, and chunks fused with
    steps.
    """
    made = []
    for number in range(2):
        batch = [
            rig.sequence(name, make_prompt(n, number, vocab_size), NEW_TOKENS, base=base)
            for name, base in names.items()
            for n in LENGTHS
        ]
        if number:
            rig.generate_chunked(batch, NEW_TOKENS, chunk_tokens=8)
        else:
            rig.prefill(batch, layers_per_slice=1)
            rig.decode(batch, NEW_TOKENS - 1, steps_per_launch=2)
        made += outputs(batch, NEW_TOKENS)
    return made


def test_adapters__beside_each_other_and_their_base__tokens_of_the_cpu(
    pair: tuple[CpuRig, CpuRig], checkpoint: Path, tmp_path: Path
) -> None:
    from lora_adapters import ALL_MODULES, AdapterShape, random_adapter  # needs more than these tests otherwise do

    produced = []
    for seed, name in enumerate("ab"):
        random_adapter(checkpoint, tmp_path / name, AdapterShape(4, ALL_MODULES), seed)
    for rig in pair:
        rig.load("base", checkpoint, "float32", max_rows=400)
        for name in "ab":
            rig.executor.load_adapter(name, "base", str(tmp_path / name), revision=None)
        produced.append(greedy(rig, {"a": "base", "base": None, "b": "base"}))

    assert produced[0] == produced[1]


@pytest.mark.parametrize("model_type", ["olmo2", "gpt_neox", "deepseek_v2"])
def test_transformers_code__prompts_steps_and_chunks__tokens_of_the_cpu(
    pair: tuple[CpuRig, CpuRig], tmp_path: Path, model_type: str
) -> None:
    with quiet_transformers():
        write_tiny_checkpoint(tmp_path, model_type)
        produced = []
        for rig in pair:
            rig.load("m", tmp_path, "float32", max_rows=400)
            produced.append(greedy(rig, {"m": None}, vocab_size=160))

    assert produced[0] == produced[1]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised__bf16__errs_about_as_much_as_on_the_cpu(
    pair: tuple[CpuRig, CpuRig], checkpoint: Path, weights: str
) -> None:
    """Widths of 192 columns: 4-bit kernels of GPUs take tiles of 128 columns, or of 64."""
    cpu = pair[0]
    cpu.load("exact", checkpoint, "float32", weights=weights)
    for rig in pair:
        rig.load("rounded", checkpoint, "bfloat16", weights=weights)

    def top(rig: CpuRig, model: str, length: int) -> dict[int, float]:
        sequence = rig.sequence(model, make_prompt(length), 1, logprobs=20)
        ((token,),) = rig.run(rig.prefill_slices([sequence], 1000)[0])
        return dict(token.top)

    for length in (9, 130):
        exact = top(cpu, "exact", length)
        errors = []
        for rig in pair:
            found = top(rig, "rounded", length)
            both = found.keys() & exact.keys()
            assert len(both) > 10
            errors.append(max(abs(found[token] - exact[token]) for token in both))
        assert errors[1] < 3 * errors[0] + 0.05, f"{length} tokens: {errors[1]} on the GPU, {errors[0]} on the CPU"


def test_sleep__woken__says_the_same_and_its_host_memory_is_unlocked_while_nothing_runs(
    pair: tuple[CpuRig, CpuRig], checkpoint: Path
) -> None:
    gpu = pair[1]
    gpu.load("m", checkpoint, "float32", max_rows=400)
    before = greedy(gpu, {"m": None})
    gpu.executor.sleep_model("m", 1 << 30)
    gpu.executor.detach_model("m")
    gpu.wake("m", max_rows=400)

    assert greedy(gpu, {"m": None}) == before
    gpu.executor.wait(gpu.executor.now() + 0.5)
    assert not gpu.executor._loading.unlock_one()


def test_load__device_runs_out_of_memory__fails_alone_and_gives_all_of_it_back(
    pair: tuple[CpuRig, CpuRig], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = pair[1]
    gpu.load("m", checkpoint, "float32", max_rows=800)
    before = greedy(gpu, {"m": None})
    large = write_model(tmp_path / "large", 2, model_type="llama", hidden_size=2048, num_heads=16, head_dim=128)
    torch.cuda.empty_cache()
    hog = torch.empty(torch.cuda.mem_get_info(DEVICE)[0] - (96 << 20), dtype=torch.uint8, device=DEVICE)
    left_bytes = torch.cuda.mem_get_info(DEVICE)[0]

    with monkeypatch.context() as wrong:
        wrong.setattr(gpu.executor._loading, "_free_bytes", lambda: 1 << 60)  # as if others had been faster
        with pytest.raises(ModelTooLarge, match="ran out of memory"):
            gpu.load("large", large, "float32")

    assert torch.cuda.mem_get_info(DEVICE)[0] > left_bytes - (16 << 20)
    assert greedy(gpu, {"m": None}) == before
    del hog
    torch.cuda.empty_cache()
    gpu.load("large", large, "float32", max_rows=100)
