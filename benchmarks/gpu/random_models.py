"""Models of known shapes with random weights, made on the device: speed does not depend on what the weights say."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.loading import LoadedModel
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import Decoder, DecoderWeights, LayerWeights
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.mixture import GatedMlp
from pdmux_actor.models.operators import DecoderOperators, HeadNorms
from pdmux_actor.models.triton_operators import TritonOperators
from pdmux_actor.models.weights import torch_dtype

_STD = 0.02


def _shape(architecture: str, layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, **more: object) -> Any:
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        **more,
    }


SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-3-8b": _shape("LlamaForCausalLM", 32, 4096, 14336, 32, 8, vocab_size=128256),
        "qwen3-8b": _shape("Qwen3ForCausalLM", 36, 4096, 12288, 32, 8, vocab_size=151936),
        "llama-3-1b": _shape(
            "LlamaForCausalLM", 16, 2048, 8192, 32, 8, vocab_size=128256, head_dim=64, tie_word_embeddings=True
        ),
        "tiny-16": _shape("Qwen3ForCausalLM", 16, 64, 128, 4, 2, vocab_size=640, head_dim=16),  # as deep as the 1B
        "tiny": _shape("Qwen3ForCausalLM", 2, 64, 128, 4, 2, vocab_size=640, head_dim=16),  # to try a script on
    }
)


def random_model(
    shape: str, *, device: torch.device, block_bytes: int, dtype: str = "bfloat16", operators: DecoderOperators
) -> LoadedModel:
    """No token ends a sequence."""
    config = DecoderConfig.from_config(shape, SHAPES[shape], dtype)
    spec = config.spec
    info = ModelInfo(
        model=shape,
        spec=spec,
        geometry=KvGeometry.of(spec, block_bytes),
        eos_token_ids=frozenset(),
        max_model_len=spec.max_position_embeddings,
    )

    def weight(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch_dtype(dtype), device=device).mul_(_STD)

    def norm(size: int) -> Tensor:
        return torch.ones(size, dtype=torch_dtype(dtype), device=device)

    def layer() -> LayerWeights:
        all_heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        return LayerWeights(
            input_norm=norm(spec.hidden_size),
            qkv=Linear(weight(all_heads, spec.hidden_size)),
            head_norms=HeadNorms(query=norm(spec.head_dim), key=norm(spec.head_dim)) if config.traits.qk_norm else None,
            output=Linear(weight(spec.hidden_size, spec.num_heads * spec.head_dim)),
            post_attention_norm=norm(spec.hidden_size),
            feed_forward=GatedMlp(
                gate_up=Linear(weight(2 * spec.intermediate_size, spec.hidden_size)),
                down=Linear(weight(spec.hidden_size, spec.intermediate_size)),
            ),
        )

    embedding = weight(spec.vocab_size, spec.hidden_size)
    head = embedding if spec.tie_word_embeddings else weight(spec.vocab_size, spec.hidden_size)
    weights = DecoderWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(spec.num_layers)),
        final_norm=norm(spec.hidden_size),
        lm_head=Linear(head, packed=not spec.tie_word_embeddings),
    )
    return LoadedModel(info=info, decoder=Decoder(config, weights, info.max_model_len, operators))


def hold_random_model(executor: TorchCudaExecutor, shape: str, dtype: str) -> ModelInfo:
    """Makes one on the executor's device, ready to be attached."""
    loaded = random_model(
        shape,
        device=executor.torch_device,
        block_bytes=executor.block_bytes,
        dtype=dtype,
        operators=TritonOperators(executor.workspace),
    )
    executor.hold(loaded)
    return loaded.info
