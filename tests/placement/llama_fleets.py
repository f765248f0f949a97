"""LLaMA-1 models on A100 nodes, as MuxServe's evaluation has them."""

from collections.abc import Sequence

from placement.demand import ModelDemand
from placement.estimation.problem_arrays import Estimator
from placement.nodes import NodePool
from placement.problem import PlacementModel
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.specs import DeviceSpec, ModelSpec
from traces.timeliness import SloTarget

GIB = 1024**3
BLOCK_BYTES = 16 * 1024
ESTIMATOR = Estimator(max_running_sequences=256)


def llama(num_layers: int, hidden_size: int, intermediate_size: int, num_heads: int) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=128,
        vocab_size=32000,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        dtype="float16",
    )


LLAMA_7B = llama(32, 4096, 11008, 32)
LLAMA_13B = llama(40, 5120, 13824, 40)
LLAMA_30B = llama(60, 6656, 17920, 52)
LLAMA_65B = llama(80, 8192, 22016, 64)


def llm(
    name: str,
    spec: ModelSpec = LLAMA_7B,
    *,
    rate_per_s: float = 1.0,
    max_replicas: int = 32,
    tbt_s: float = 0.2,
    ttft_s: float = 2.0,
) -> PlacementModel:
    return PlacementModel(
        model=name,
        spec=spec,
        demand=ModelDemand(model=name, rate_per_s=rate_per_s, prompt_tokens=161, output_tokens=337),
        min_replicas=1,
        max_replicas=max_replicas,
        max_model_len=2048,
        slo=SloTarget(ttft_s=ttft_s, tbt_s=tbt_s),
    )


def nodes(
    num_nodes: int = 1, gpus_per_node: int = 8, *, device: DeviceSpec = A100_80G, name: str = "a", pool_gib: int = 30
) -> NodePool:
    return NodePool(
        name=name,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        device=device,
        memory_bytes=device.memory_bytes,
        block_bytes=BLOCK_BYTES,
        total_blocks=pool_gib * GIB // BLOCK_BYTES,
    )


def power_law(sizes: Sequence[ModelSpec], *, alpha: float, max_rate_per_s: float) -> list[PlacementModel]:
    return [llm(f"llm-{i:02}", s, rate_per_s=max_rate_per_s * (i + 1) ** -alpha) for i, s in enumerate(sizes)]
