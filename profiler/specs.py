"""What a model and a device are, in the numbers that cost formulas need."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiler.errors import UnsupportedModel

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

_DENSE_ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of a dense decoder-only transformer."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str

    @classmethod
    def from_config(cls, config: Mapping[str, Any], dtype: str | None = None) -> "ModelSpec":
        """Reads a Hugging Face `config.json`; `dtype` overrides the checkpoint's own.

        Raises:
            UnsupportedModel: the architecture is not a dense Llama, Mistral, Qwen2 or Qwen3, or a field is missing.
        """
        architectures = config.get("architectures") or ["<none>"]
        architecture = str(architectures[0])
        if architecture not in _DENSE_ARCHITECTURES:
            raise UnsupportedModel(
                field="architectures",
                value=architecture,
                remedy=f"use a checkpoint of one of {', '.join(sorted(_DENSE_ARCHITECTURES))}",
            )
        try:
            num_heads = int(config["num_attention_heads"])
            hidden_size = int(config["hidden_size"])
            spec_dtype = dtype or str(config.get("dtype") or config.get("torch_dtype") or "float32")
            if spec_dtype not in DTYPE_BYTES:
                raise UnsupportedModel(field="dtype", value=spec_dtype, remedy=f"use one of {', '.join(DTYPE_BYTES)}")
            return cls(
                architecture=architecture,
                num_layers=int(config["num_hidden_layers"]),
                hidden_size=hidden_size,
                intermediate_size=int(config["intermediate_size"]),
                num_heads=num_heads,
                num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
                head_dim=int(config.get("head_dim") or hidden_size // num_heads),
                vocab_size=int(config["vocab_size"]),
                max_position_embeddings=int(config.get("max_position_embeddings") or 2048),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                dtype=spec_dtype,
            )
        except KeyError as missing:
            raise UnsupportedModel(
                field=str(missing.args[0]), value="<missing>", remedy="add it to the checkpoint's config.json"
            ) from missing

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def params_per_layer(self) -> int:
        """Weights of one layer's matrices; norms and biases are negligible and left out."""
        q_dim = self.num_heads * self.head_dim
        kv_dim = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (q_dim + 2 * kv_dim) + q_dim * self.hidden_size
        mlp = 3 * self.hidden_size * self.intermediate_size
        return attention + mlp

    @property
    def num_params(self) -> int:
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * self.params_per_layer + embeddings

    @property
    def weight_bytes(self) -> int:
        return self.num_params * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that lanes share. `num_sms` counts cores on a CPU.

    Rates are what large kernels reach, not what the data sheet promises. `launch_overhead_s` is what a kernel costs
    beside its work. `bandwidth_saturation_share` is the share of SMs that draws 63 % (1 - 1/e) of the bandwidth;
    compute grows with the share of SMs to the power of `compute_scaling_exponent`.
    """

    name: str
    num_sms: int
    peak_flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    memory_bytes: int
    launch_overhead_s: float
    partition_granularity_sms: int = 1
    bandwidth_saturation_share: float = 0.22
    compute_scaling_exponent: float = 1.0
    source: str = ""
