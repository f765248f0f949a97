"""Fleets for the planner's benchmark: MuxServe's evaluation rebuilt from its description, and random small ones."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engines.model_specs import llama

from placement.demand import ModelDemand
from placement.nodes import NodePool
from placement.problem import PlacementModel
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.specs import ModelSpec
from traces.timeliness import SloTarget

GIB = 1024**3
BLOCK_BYTES = 16 * 1024
PROMPT_TOKENS, OUTPUT_TOKENS = 161, 337  # ShareGPT, as hard-coded in the release
ALPHAS = (0.7, 0.9, 1.3, 1.7, 2.1)
MAX_RATES_PER_S = (20, 40)
CHATLMSYS_LOADS = {500: 47.5, 800: 76.0, 1200: 114.0, 1600: 152.0, 2000: 190.0}  # offered requests per second
# Load 800. The four hottest, the range of the 65B models and the total are MuxServe's; the rest is filled in between.
_CHATLMSYS_800 = (
    *((size, rate) for size, rate in ((7, 13.04), (13, 13.02), (13, 11.33), (30, 9.89))),
    *((7, rate) for rate in (5.5, 3.0, 0.97)),
    *((13, rate) for rate in (4.5, 3.6, 1.7, 0.7)),
    *((30, rate) for rate in (2.3, 1.3)),
    *((65, rate) for rate in (2.17, 1.70, 1.28)),
)


_LLAMA_1: Mapping[int, tuple[int, int, int, int, int]] = MappingProxyType(
    {
        7: (32, 4096, 11008, 32, 32),
        13: (40, 5120, 13824, 40, 40),
        30: (60, 6656, 17920, 52, 52),
        65: (80, 8192, 22016, 64, 64),
    }
)


def llama_1(billions: int) -> ModelSpec:
    return llama(*_LLAMA_1[billions], vocab_size=32000, max_position_embeddings=2048, dtype="float16")


def model(name: str, billions: int, rate_per_s: float, *, max_replicas: int = 64) -> PlacementModel:
    return PlacementModel(
        model=name,
        spec=llama_1(billions),
        demand=ModelDemand(model=name, rate_per_s=rate_per_s, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS),
        min_replicas=1,
        max_replicas=max_replicas,
        max_model_len=2048,
        slo=SloTarget(ttft_s=2.0, tbt_s=0.2),
    )


def a100_nodes(num_gpus: int) -> NodePool:
    per_node = min(8, num_gpus)
    return NodePool(
        name="a100",
        num_nodes=num_gpus // per_node,
        gpus_per_node=per_node,
        device=A100_80G,
        memory_bytes=A100_80G.memory_bytes,
        block_bytes=BLOCK_BYTES,
        total_blocks=32 * GIB // BLOCK_BYTES,
    )


def synthetic(alpha: float, max_rate_per_s: float) -> list[PlacementModel]:
    """MuxServe Table 1: the hottest are the smallest, as in its evaluation."""
    sizes = [7] * 12 + [13] * 4 + [30] * 2 + [65]
    return [model(f"llm-{i:02}", size, max_rate_per_s * (i + 1) ** -alpha) for i, size in enumerate(sizes)]


def chatlmsys(load: int) -> list[PlacementModel]:
    scale = CHATLMSYS_LOADS[load] / CHATLMSYS_LOADS[800]
    return [model(f"llm-{i:02}", size, rate * scale) for i, (size, rate) in enumerate(_CHATLMSYS_800)]


def mixed_fleet(num_models: int, *, seed: int, mean_rate_per_s: float) -> list[PlacementModel]:
    """Popularity by a power law (alpha 0.9) and independent of size, so that large models are hot too."""
    draw = random.Random(seed)
    sizes = draw.choices((7, 13, 30, 65), (12, 4, 2, 1), k=num_models)
    weights = [(i + 1) ** -0.9 for i in range(num_models)]
    draw.shuffle(weights)
    scale = mean_rate_per_s * num_models / sum(weights)
    return [
        model(f"m{i:04}", size, weight * scale) for i, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]


def small_fleet(seed: int) -> tuple[NodePool, Sequence[PlacementModel]]:
    """Three or four GPUs, three models: few enough plans to look at all of them."""
    draw = random.Random(seed)
    pool = a100_nodes(draw.choice((3, 4)))
    models = [
        model(f"m{i}", draw.choice((7, 7, 13, 30)), draw.choice((0.2, 1.0, 4.0, 10.0, 20.0)), max_replicas=2)
        for i in range(3)
    ]
    return pool, models
