"""Mixtures of experts: looped and grouped products agree, a token does not depend on its batch."""

from pathlib import Path

import pytest
import torch
from cpu_rig import CpuRig, make_prompt, outputs

from pdmux_actor.models.linear import Linear
from pdmux_actor.models.mixture import GatedMlp, GroupedExperts, LoopedExperts, Mixture
from pdmux_actor.models.operators import TorchOperators
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

EXPERTS, HIDDEN, INNER, TOP_K = 6, 64, 32, 2


def mixtures(normalises: bool, dtype: torch.dtype = torch.float32) -> tuple[Mixture, Mixture]:
    generator = torch.Generator().manual_seed(4)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).to(dtype)

    router = Linear(weight(EXPERTS, HIDDEN))
    gate_up, down = weight(EXPERTS, 2 * INNER, HIDDEN), weight(EXPERTS, HIDDEN, INNER)
    looped = LoopedExperts(
        mlps=tuple(GatedMlp(gate_up=Linear(gate_up[i]), down=Linear(down[i])) for i in range(EXPERTS))
    )
    grouped = GroupedExperts(gate_up=Linear(gate_up, packed=False), down=Linear(down, packed=False))
    return tuple(
        Mixture(router=router, experts=experts, experts_per_token=TOP_K, normalises=normalises)
        for experts in (looped, grouped)
    )


@pytest.mark.parametrize("num_tokens", [1, 2, 50])
@pytest.mark.parametrize("normalises", [True, False])
def test_mixture__looped_and_grouped__are_the_sum_over_chosen_experts(normalises: bool, num_tokens: int) -> None:
    looped, grouped = mixtures(normalises)
    inputs = torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(5))
    addend = torch.ones_like(inputs)
    scores = torch.softmax(looped.router(inputs), dim=-1)
    expected = addend.clone()
    for token in range(num_tokens):
        top = scores[token].topk(TOP_K)
        shares = top.values / top.values.sum() if normalises else top.values
        for share, expert in zip(shares, top.indices, strict=True):
            mlp = looped.experts.mlps[expert]
            inner = TorchOperators().silu_product(mlp.gate_up(inputs[token : token + 1]))
            expected[token] += share * mlp.down(inner)[0]

    for mixture in (looped, grouped):
        total = mixture.plus(inputs, addend.clone(), TorchOperators())
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


def test_mixture__copied__is_over_the_same_number_of_tensors_in_the_same_order() -> None:
    for mixture in mixtures(normalises=True):
        first, second = [], []
        mixture.copied(lambda projection, seen=first: seen.append(projection) or projection)
        again = mixture.copied(lambda projection, seen=second: seen.append(projection) or projection)

        assert first == second
        assert again == mixture


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral"])
def test_mixture__quantised_and_asleep__says_the_same_in_any_batch(tmp_path: Path, model_type: str) -> None:
    shape = CheckpointShape(
        model_type=model_type,
        num_layers=2,
        hidden_size=64,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
    )
    write_random_checkpoint(tmp_path / "m", shape, seed=3)
    rig = CpuRig()
    try:
        rig.load("m", tmp_path / "m", weights="int8")
        prompts = [make_prompt(length) for length in (3, 40, 17)]
        together = [rig.sequence("m", prompt, 6) for prompt in prompts]
        rig.prefill(together)
        rig.decode(together, 5)
        rig.executor.sleep_model("m", 1 << 30)
        rig.executor.detach_model("m")
        rig.wake("m")
        alone = [rig.sequence("m", prompt, 6) for prompt in prompts]
        for sequence in alone:
            rig.prefill([sequence])
            rig.decode([sequence], 5)

        assert outputs(together, 6) == outputs(alone, 6)
    finally:
        rig.close()
