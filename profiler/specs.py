"""Defines what a model and a device are, in the numbers that cost formulas need."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from profiler.config_fields import count
from profiler.errors import UnsupportedModel
from profiler.families.entry import ModelFamily
from profiler.families.registry import FAMILIES, family_of
from profiler.weight_formats import MXFP4, PLAIN, QUANTISABLE, WEIGHT_FORMATS, format_of

AUTO_DTYPE = "auto"  # in place of a dtype: whichever the device computes fastest in
_BIDIRECTIONAL: Mapping[str, Sequence[object]] = {"is_causal": (False,), "use_bidirectional_attention": (True, "all")}
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder-only transformer, dense or with a mixture of experts.

    `num_experts` 0 means dense. Of a mixture, `num_dense_layers` have an ordinary MLP of `intermediate_size`, the
    others a router and `num_experts` MLPs of `expert_intermediate_size`, of which a token passes `experts_per_token`.
    `scaled_context_tokens` is how far its rotary scaling reaches, if that is beyond `max_position_embeddings`, else 0.
    `weights` is what its projections are kept in, of WEIGHT_FORMATS, some of which are for experts only; None: in
    `dtype`, as activations, KV, embedding, classifier and routers are.
    """

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
    num_experts: int = 0
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    num_dense_layers: int = 0
    scaled_context_tokens: int = 0
    weights: str | None = None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], dtype: str | None = None, weights: str | None = None
    ) -> "ModelSpec":
        """Reads a Hugging Face `config.json`; `dtype` and `weights` override the checkpoint's own.

        Raises:
            UnsupportedModel: the architecture is no registered family's, a field is missing, or is no positive number.
        """
        architectures = config.get("architectures") or ["<none>"]
        if not isinstance(architectures, list):
            raise UnsupportedModel(field="architectures", value=str(architectures), remedy="it must be a list of names")
        architecture = str(architectures[0])
        family = family_of(architecture)
        if not family.is_planned:
            remedy = f"{family.refusal}; SGLang by itself may serve it, a fleet does not"
            raise UnsupportedModel(field="architectures", value=architecture, remedy=remedy)
        _refuse_bidirectional(config)
        if family.names is not None:
            config = family.names(config)
        num_heads = count(config, "num_attention_heads")
        hidden_size = count(config, "hidden_size")
        spec_dtype = dtype or str(config.get("dtype") or config.get("torch_dtype") or "float32")
        if spec_dtype not in DTYPE_BYTES:
            raise UnsupportedModel(field="dtype", value=spec_dtype, remedy=f"use one of {', '.join(DTYPE_BYTES)}")
        choices = (*QUANTISABLE, PLAIN)
        if weights is not None and weights not in choices:
            raise UnsupportedModel(field="weights", value=weights, remedy=f"use one of {', '.join(choices)}")
        return cls(
            architecture=architecture,
            num_layers=count(config, "num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=count(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=count(config, "num_key_value_heads", default=num_heads),
            head_dim=count(config, "head_dim", default=hidden_size // num_heads),
            vocab_size=count(config, "vocab_size"),
            max_position_embeddings=count(config, "max_position_embeddings", default=2048),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            dtype=spec_dtype,
            scaled_context_tokens=_scaled_context(config),
            weights=format_of(config, weights),
            **_experts(family, config),
        )

    def context_tokens(self, requested: int | None) -> int:
        """Returns the length of the longest sequence: what is asked for, as far as the checkpoint goes; what it names
        if nothing is.
        """
        longest = max(self.max_position_embeddings, self.scaled_context_tokens)
        return self.max_position_embeddings if requested is None else min(requested, longest)

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def weight_format_bytes(self) -> float:
        """Returns the bytes of one weight of the projections that `weights` is for, on the average."""
        if self.weights is None:
            return self.dtype_bytes
        kept_as = WEIGHT_FORMATS[self.weights]
        if kept_as.of_experts:
            return kept_as.bytes_each(self.dtype_bytes)
        return self.projection_bytes / self.num_projection_params

    @property
    def weights_beside_experts(self) -> str | None:
        """Returns what projections are kept in that are no experts', as `weights` says it of all."""
        is_for_all = self.weights is None or not WEIGHT_FORMATS[self.weights].of_experts
        return self.weights if is_for_all else None

    @property
    def projection_bytes(self) -> int:
        """Returns what all projections take, with their scales, as native decoders stack them for products. Of other
        families the sizes of products are not known: rows count as long ones.
        """
        if self.weights is None:
            return self.num_projection_params * self.dtype_bytes
        kept_as, hidden = WEIGHT_FORMATS[self.weights], self.hidden_size
        if kept_as.of_experts:
            num_experts, inner = self.num_moe_layers * self.num_experts, self.expert_intermediate_size
            num_others = self.num_projection_params - num_experts * self.params_per_expert
            of_expert = kept_as.product_bytes(2 * inner, hidden, 0) + kept_as.product_bytes(hidden, inner, 0)
            return num_others * self.dtype_bytes + num_experts * of_expert
        if self.architecture not in FAMILIES:
            return int(self.num_projection_params * kept_as.bytes_each(self.dtype_bytes))
        attention, num_dense = self.num_heads * self.head_dim, self.num_layers - self.num_moe_layers
        products = [
            (self.num_layers, attention + 2 * self.num_kv_heads * self.head_dim, hidden),
            (self.num_layers, hidden, attention),
        ]
        for num_mlps, inner in (
            (num_dense, self.intermediate_size),
            (self.num_moe_layers * self.num_experts, self.expert_intermediate_size),
        ):
            products += [(num_mlps, 2 * inner, hidden), (num_mlps, hidden, inner)]
        return sum(times * kept_as.product_bytes(rows, columns, self.dtype_bytes) for times, rows, columns in products)

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def num_moe_layers(self) -> int:
        return self.num_layers - self.num_dense_layers if self.is_moe else 0

    @property
    def attention_params_per_layer(self) -> int:
        """QKV and output projections; norms and biases are negligible and left out, here and below."""
        q_dim = self.num_heads * self.head_dim
        kv_dim = self.num_kv_heads * self.head_dim
        return self.hidden_size * (q_dim + 2 * kv_dim) + q_dim * self.hidden_size

    @property
    def params_per_expert(self) -> int:
        return 3 * self.hidden_size * self.expert_intermediate_size

    @property
    def num_params(self) -> int:
        return self.num_projection_params + self.num_router_params + self._embedding_params

    @property
    def num_projection_params(self) -> int:
        """Counts those that `weights` says the format of."""
        return self._layer_params(self.num_experts) - self.num_router_params

    @property
    def num_router_params(self) -> int:
        return self.num_moe_layers * self.hidden_size * self.num_experts

    @property
    def num_active_params(self) -> int:
        """Returns how many parameters a token passes through: two FLOPs each, attention and the embedding's look-up
        aside.
        """
        return self._layer_params(self.experts_per_token) + self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        return self.projection_bytes + (self.num_router_params + self._embedding_params) * self.dtype_bytes

    @property
    def embedding_bytes(self) -> int:
        return self.vocab_size * self.hidden_size * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return self.kv_bytes_per_token_per_gpu(1)

    def kv_heads_per_gpu(self, num_gpus: int) -> int:
        """GPUs beyond the number of KV heads hold copies of them."""
        return max(1, -(-self.num_kv_heads // num_gpus))

    def kv_bytes_per_token_per_gpu(self, num_gpus: int) -> int:
        return 2 * self.num_layers * self.kv_heads_per_gpu(num_gpus) * self.head_dim * self.dtype_bytes

    @property
    def _embedding_params(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    def _layer_params(self, experts: int) -> int:
        dense_mlp = 3 * self.hidden_size * self.intermediate_size
        moe_mlp = experts * self.params_per_expert + self.hidden_size * self.num_experts
        mlps = (self.num_layers - self.num_moe_layers) * dense_mlp + self.num_moe_layers * moe_mlp
        return self.num_layers * self.attention_params_per_layer + mlps


def _refuse_bidirectional(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel: tokens attend to those after them, as in decoders that were made into encoders."""
    of_text = config.get("text_config")
    for said in (config, of_text if isinstance(of_text, Mapping) else {}):
        for field, values in _BIDIRECTIONAL.items():
            if said.get(field) in values:
                remedy = "its tokens attend to those after them, which no KV cache serves; use a causal decoder"
                raise UnsupportedModel(field=field, value=str(said[field]), remedy=remedy)


def _scaled_context(config: Mapping[str, Any]) -> int:
    """YaRN as Qwen's model cards switch it on leaves `max_position_embeddings` at the length before the scaling, and so
    do linear and dynamic scaling. Llama 3.1 and LongRoPE name the length after it. What is no number is for whoever
    reads the scaling itself to refuse.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(given, Mapping):
        return 0
    rope_type, named = given.get("rope_type") or given.get("type"), _number(config.get("max_position_embeddings"))
    original = _number(given.get("original_max_position_embeddings")) if rope_type == "yarn" else 0.0
    reach = int((original or named) * _number(given.get("factor")))
    return reach if rope_type in ("yarn", "linear", "dynamic") and reach > named else 0


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if is_number else 0.0  # type: ignore[arg-type]  # a number, as just seen


def _experts(family: ModelFamily, config: Mapping[str, Any]) -> dict[str, int]:
    if family.experts is None:
        return {}
    sizes = family.experts(config)
    if sizes is None:
        return {}
    per_token = count(config, "num_experts_per_tok")
    if per_token > sizes.num_experts:
        raise UnsupportedModel(
            field="num_experts_per_tok", value=str(per_token), remedy=f"there are {sizes.num_experts} experts"
        )
    return {**asdict(sizes), "experts_per_token": per_token}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device that lanes share. `num_sms` counts cores on a CPU.

    Rates are what large kernels reach, not what the data sheet promises. `launch_overhead_s` is what a kernel costs
    beside its work. `bandwidth_saturation_share` is the share of SMs that draws 63 % (1 - 1/e) of the bandwidth;
    compute grows with the share of SMs to the power of `compute_scaling_exponent`.

    `knee_exponent` says how sharply a GEMM turns from memory-bound to compute-bound (operator_costs.smooth_max), and
    `gemm_tile_tokens` how many tokens it computes at least when there are that many (operator_costs.whole_tiles).
    Attention reaches `attention_compute_share` and `attention_bandwidth_share` of the rates, and takes
    `attention_start_s` beyond its launch. For a prompt it computes `attention_padding_tokens` more rows of queries than
    there are (tiles and waves that are not full), `attention_masked_share` of the pairs of a query and a later key (0:
    it skips them all). A sequence that decodes in one batch with prompts takes the work of `fused_decode_tokens`, since
    its one query takes a tile of the prompts' kernel, and `fused_sequence_s` a head for blocks that find nothing to do.
    With prompts, a batch takes at least `attention_longest_key_s` per key of its longest request.

    Products with weights of 8 and 4 bits (WEIGHT_FORMATS) reach `int8_compute_share` and `int4_compute_share` of the
    rate of those in the model's dtype.

    A mesh's all-reduce starts in `all_reduce_start_s` plus `link_latency_s` a round and moves
    `link_bandwidth_bytes_per_s` per GPU and direction; 0 where devices have no links. Links that GPUs share, as those
    of PCIe cards, carry that between two; between n a `link_sharing_exponent`-th power of n / 2 less. From pinned host
    memory come `host_copy_bytes_per_s`; 0 where that is not known.
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
    knee_exponent: float = 4.0
    gemm_tile_tokens: int = 1
    attention_compute_share: float = 0.62
    attention_bandwidth_share: float = 0.95
    attention_start_s: float = 0.0
    attention_padding_tokens: float = 0.0
    attention_masked_share: float = 0.0
    fused_decode_tokens: float = 1.0
    fused_sequence_s: float = 0.0
    attention_longest_key_s: float = 0.0
    link_bandwidth_bytes_per_s: float = 0.0
    link_sharing_exponent: float = 0.0
    link_latency_s: float = 0.0
    all_reduce_start_s: float = 0.0
    host_copy_bytes_per_s: float = 0.0
    int8_compute_share: float = 1.0
    int4_compute_share: float = 1.0
    source: str = ""

    def compute_share(self, weights: str | None) -> float:
        """Returns what share of the compute rate products reach whose weights are kept so, by ModelSpec. Experts in
        MXFP4 are unpacked to the model's dtype before they are multiplied with many tokens.
        """
        if weights in (None, MXFP4):
            return 1.0
        return self.int4_compute_share if weights.startswith("int4") else self.int8_compute_share
