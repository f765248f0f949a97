"""What plans take for refused is what docs/models.md says, and what loading says."""

from pathlib import Path

import pytest

from profiler.families.entry import ModelFamily
from profiler.families.registry import all_families
from profiler.native_refusal import NativeDevice, native_refusal
from profiler.specs import ModelSpec

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
PLANNED = [family for family in all_families().values() if family.is_planned]


def spec_of(
    architecture: str, *, weights: str | None = None, num_experts: int = 0, vocab_size: int = 1024
) -> ModelSpec:
    return ModelSpec(
        architecture=architecture,
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=vocab_size,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        dtype="bfloat16",
        num_experts=num_experts,
        experts_per_token=min(2, num_experts),
        expert_intermediate_size=32 if num_experts else 0,
        weights=weights,
    )


def table() -> dict[str, dict[str, str]]:
    """By architecture and title, the cells of the page's table."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    heads = next(cells for cells in rows if cells[0] == "architecture")
    named = [dict(zip(heads, cells, strict=True)) for cells in rows if len(cells) == len(heads)]
    return {row["architecture"].strip("`"): row for row in named}


TABLE = table()


@pytest.mark.parametrize(("column", "on", "num_ranks"), [("CPU", "cpu", 1), ("CUDA", "cuda", 1), ("TP", "cpu", 2)])
@pytest.mark.parametrize("family", PLANNED, ids=lambda family: family.model_type)
def test_refusal__any_planned_family__is_what_the_page_says(
    family: ModelFamily, column: str, on: NativeDevice, num_ranks: int
) -> None:
    told = TABLE[family.name][column]

    is_run = native_refusal(spec_of(family.name), on, num_ranks) is None

    assert is_run == ("native" in told or "transformers" in told)


@pytest.mark.parametrize(
    ("spec", "on", "num_ranks", "reason"),
    [
        (spec_of("Gemma2ForCausalLM"), "cuda", 1, "Gemma2ForCausalLM is not served on a GPU: it caps the scores"),
        (spec_of("GptOssForCausalLM", num_experts=8), "cuda", 1, "no kernels here have its attention and experts"),
        (spec_of("Qwen3MoeForCausalLM", num_experts=8, weights="int8"), "cuda", 1, "weights=int8 of a mixture"),
        (spec_of("OlmoeForCausalLM", num_experts=8, weights="int8"), "cpu", 1, "weights=int8 cannot be had of Olmoe"),
        (spec_of("Olmo2ForCausalLM"), "cpu", 2, "runs by transformers' code, which is not divided among ranks"),
        (spec_of("LlamaForCausalLM", vocab_size=1023), "cuda", 2, "vocab_size=1023 cannot be divided among 2 ranks"),
        (spec_of("LlamaForCausalLM"), "cpu", 16, "num_attention_heads=8 cannot be divided among 16 ranks"),
    ],
)
def test_refusal__of_a_model__names_the_reason(spec: ModelSpec, on: NativeDevice, num_ranks: int, reason: str) -> None:
    refused = native_refusal(spec, on, num_ranks)

    assert refused is not None
    assert reason in refused.reason
    assert refused.remedy


def test_refusal__fast_decoder_there_but_by_transformers__is_of_its_code() -> None:
    spec = spec_of("GptOssForCausalLM", num_experts=8)

    refused = native_refusal(spec, "cuda", by_transformers=True)

    assert refused is not None
    assert "caps the scores of attention, or has sinks" in refused.reason
    assert native_refusal(spec, "cpu", by_transformers=True) is None
