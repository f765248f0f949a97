"""Whatever launches ask of Triton was compiled while the model was loaded: a variant takes a second, and traffic would
wait for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import make_cuda_rig
from gguf_checkpoints import Kind, write_gguf
from kernel_variants import Variant, recorded_variants
from lora_adapters import ALL_MODULES, AdapterShape, random_adapter
from quantised_checkpoints import write_quantised
from tiny_models import write_tiny_checkpoint
from transformers_rig import quiet_transformers

from pdmux_actor.executor.cuda.kv_kernels import gather_kv
from pdmux_actor.messages import LogitsProcessing
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.sequence import TokenSequence
from placement.launch_limits import LaunchLimits
from profiler.adapter_sites import Site

NEW_TOKENS = 3
DRAWN = {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "seed": 1}
SAMPLINGS = ({}, {**DRAWN, "processing": LogitsProcessing(min_p=0.3, repetition_penalty=1.5)}, {"logprobs": 2})


def traffic(rig: CpuRig, model: str, samplings: Sequence[Mapping[str, Any]] = SAMPLINGS) -> None:
    """Prompts in slices, over cached prefixes and in chunks fused with decode steps; batches of one and of several."""
    for sampling in samplings:
        batch = [rig.sequence(model, make_prompt(n, seed=1), NEW_TOKENS, **sampling) for n in (1, 5, 2)]
        rig.prefill(batch, layers_per_slice=1)
        rig.decode(batch[:1], 1)
        rig.decode(batch, 2, steps_per_launch=2)
    chunked = [rig.sequence(model, make_prompt(n, seed=2), NEW_TOKENS, **DRAWN) for n in (7, 6)]
    rig.generate_chunked(chunked, NEW_TOKENS, chunk_tokens=5)
    donor = rig.sequence(model, make_prompt(11), 1)
    rig.prefill([donor])
    rig.over_prefix(donor, 8, 1)


def adapted_traffic(rig: CpuRig) -> None:
    """The same for adapters, alone and beside each other and their base."""

    def batch(*lengths: int) -> list[TokenSequence]:
        members = zip(("a", None, "b"), lengths, strict=False)
        return [
            rig.sequence(name or "base", make_prompt(n), NEW_TOKENS, base="base" if name else None, **DRAWN)
            for name, n in members
        ]

    sliced = batch(5, 18, 3)
    rig.prefill(sliced, layers_per_slice=1)
    rig.decode(sliced[:1], 1)
    rig.decode(sliced, 2, steps_per_launch=2)
    rig.generate_chunked(batch(7, 6), NEW_TOKENS, chunk_tokens=5)


class Compiled:
    """What a rig's launches ask of Triton, and what it was asked for while models and adapters were loaded."""

    def __init__(self, rig: CpuRig, found: set[Variant]) -> None:
        self.found, self.warm = found, set[Variant]()
        rig.executor.load_model = self._noted(rig.executor.load_model)
        rig.executor.load_adapter = self._noted(rig.executor.load_adapter)

    def _noted(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(*args: object, **kwargs: object) -> object:
            before = set(self.found)
            info = load(*args, **kwargs)
            self.warm |= self.found - before
            return info

        return loaded

    @property
    def cold(self) -> set[Variant]:
        return self.found - self.warm


@pytest.fixture
def rig() -> CpuRig:
    return make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=64, sequences=4))


@pytest.fixture
def compiled(rig: CpuRig) -> Iterator[Compiled]:
    with recorded_variants() as found:
        yield Compiled(rig, found)


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_traffic__of_all_kinds__compiles_nothing(
    rig: CpuRig, compiled: Compiled, tiny_checkpoints: Mapping[str, Path], model: str
) -> None:
    rig.load(model, tiny_checkpoints[model], "float32", max_rows=100)
    traffic(rig, model)

    assert {name for name, _ in compiled.warm} >= {"_split_kernel", "_gather_kernel", "_draw_kernel", "_ban_kernel"}
    assert not compiled.cold


@pytest.fixture(scope="module")
def quantisable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of widths that groups of 4-bit levels divide."""
    folder = tmp_path_factory.mktemp("quantisable") / "plain"
    shape = CheckpointShape(
        model_type="qwen3",
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
    )
    write_random_checkpoint(folder, shape, seed=3)
    return folder


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "gguf"])
def test_traffic__quantised_weights__compiles_nothing(
    rig: CpuRig,
    compiled: Compiled,
    quantisable: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounded as they are read, or stored so: FP8's become 8 bits, and this file's 4."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))  # where what is read of a GGUF file is kept
    source, weights = quantisable, kind
    if kind == "fp8":
        source, weights = tmp_path / "stored", None
        write_quantised(quantisable, source, kind)
    elif kind == "gguf":
        source, weights = tmp_path / "stored.gguf", None
        write_gguf(quantisable, source, {}, Kind.Q4_0)
    rig.load("m", source, "float32", max_rows=100, weights=weights)
    assert not isinstance(rig.executor._attached["m"].decoder.weights.layers[0].qkv, Linear)
    traffic(rig, "m", SAMPLINGS[:1])

    assert not compiled.cold


def test_traffic__model_that_runs_by_transformers_code__compiles_nothing(
    rig: CpuRig, compiled: Compiled, tmp_path: Path
) -> None:
    with quiet_transformers():
        write_tiny_checkpoint(tmp_path, "olmo2", vocab_size=640)
        rig.load("m", tmp_path, "float32", max_rows=100)
        traffic(rig, "m", SAMPLINGS[:1])

    assert not compiled.cold


@pytest.mark.parametrize("weights", [None, "int8"])
def test_traffic__with_adapters__compiles_nothing(
    rig: CpuRig, compiled: Compiled, quantisable: Path, tmp_path: Path, weights: str | None
) -> None:
    rig.load("base", quantisable, "float32", max_rows=100, weights=weights)
    for seed, name in enumerate(("a", "b")):
        folder = random_adapter(quantisable, tmp_path / name, AdapterShape(4, ALL_MODULES), seed)
        rig.executor.load_adapter(name, "base", str(folder), revision=None)
    adapted_traffic(rig)

    assert not compiled.cold


def test_load_adapter__before_its_first_launch__products_of_prompts_and_of_batches_have_run(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries load the kernels that they choose then, too."""
    ran: list[tuple[int, bool]] = []
    add = AdapterBatch.add

    def noted(self: AdapterBatch, layer: int, site: Site, inputs: Tensor, outputs: Tensor) -> None:
        ran.append((len(inputs), self.gathered is not None))
        add(self, layer, site, inputs, outputs)

    rig = make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=20, sequences=3), captures_ahead=True)
    rig.load("llama", tiny_checkpoints["llama"], "float32")
    monkeypatch.setattr(AdapterBatch, "add", noted)
    folder = random_adapter(tiny_checkpoints["llama"], tmp_path / "a", AdapterShape(4, ALL_MODULES))
    rig.executor.load_adapter("a", "llama", str(folder), revision=None)

    assert set(ran) == {(20, False), (2, False), (1, False), (2, True), (4, True)}


def test_gather_kv__contexts_of_a_piece__begin_anywhere_with_one_variant() -> None:
    pool, table = torch.zeros(4, 128), torch.zeros(2, 4, dtype=torch.int32)
    rows, offsets = (torch.zeros(8, dtype=torch.int32) for _ in range(2))
    with recorded_variants() as compiled:
        for first in (0, 1, 3):
            gather_kv(pool, table, rows[first:], offsets[first:], layer=1, kv_heads=2, head_dim=16)

    assert len(compiled) == 1


def test_load_model__batches_beyond_the_buckets__their_lists_of_splits_are_compiled(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    rig = make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=64, sequences=300))
    with recorded_variants() as compiled:
        rig.load("llama", tiny_checkpoints["llama"], "float32")

    assert sum(name == "_split_list_kernel" for name, _ in compiled) == 2
