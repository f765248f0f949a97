"""Reads a decoder's weights from its files, fused and laid out as the decoder wants them."""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.compiled.compiled_kernels import BY_TORCH, CompiledKernels
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights, LayerWeights
from pdmux_actor.models.expert_stacks import ExpertStacks
from pdmux_actor.models.gguf_files.file_tensors import gguf_tensors
from pdmux_actor.models.linear import Linear, MakeProjection, plain_projection
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.models.memory_shortage import let_go
from pdmux_actor.models.mixture import Experts, FeedForward, GatedMlp, GroupedExperts, LoopedExperts, Mixture
from pdmux_actor.models.operators import HeadNorms
from pdmux_actor.models.projection_reader import BytesInFlight, ProjectionReader
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.tensor_reader import TensorReader
from pdmux_actor.models.torch_threads import use_torch_threads
from pdmux_actor.models.uploads import Upload, copy_in_place
from profiler.families.entry import MixtureTraits
from profiler.specs import ModelSpec

_LOG = logging.getLogger(__name__)
_HEAD = "lm_head.weight"
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def torch_dtype(name: str) -> torch.dtype:
    """`name` is one of profiler.specs.DTYPE_BYTES."""
    return _DTYPES[name]


def load_weights(
    model: str,
    folder: Path,
    config: DecoderConfig,
    device: torch.device | None = None,
    make_projection: MakeProjection = plain_projection,
    kernels: CompiledKernels = BY_TORCH,
    *,
    upload: Upload = copy_in_place,
    num_threads: int = 1,
    on_progress: OnProgress = ignore_progress,
    share: RankShare = WHOLE,
) -> DecoderWeights:
    """Onto `device`, by `upload`; None is the CPU. `share` is what is read of the model that `config` describes;
    `kernels` multiply with its head. What is held beside the weights is the largest product's, in its plain layout.

    Raises:
        ModelLoadError: a file or tensor is missing, broken or of another shape than config.json implies.
    """
    spec, mixture = config.spec, config.traits.mixture
    reader = TensorReader(
        model,
        folder,
        dtype=torch_dtype(spec.dtype),
        device=device,
        upload=upload,
        on_progress=on_progress,
        readers=share.num_ranks,
        stored=config.stored,
        gguf=gguf_tensors(model, folder, spec.head_dim, mixture) if config.is_gguf else None,
        keeps=spec.weights,
        stacks=None if mixture is None or not mixture.is_stacked else ExpertStacks(mixture, spec.num_experts),
    )
    projections = ProjectionReader(
        tensors=reader,
        in_flight=BytesInFlight(_largest_product_bytes(share.spec_of(spec))),
        make=make_projection,
        share=share,
        is_quantised=spec.weights is not None,
    )
    embedding = reader.load("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    if spec.tie_word_embeddings and share.leads and not config.is_gguf:
        _check_tied(model, reader, embedding)
    if spec.tie_word_embeddings and share.divided is None:
        embedding = kernels.laid(embedding, spec)  # once more, while nothing else is held
    layers = on_threads(partial(_load_layer, projections, config), range(spec.num_layers), num_threads)
    final_norm = reader.load("model.norm.weight", spec.hidden_size)
    rows = spec.vocab_size // share.num_ranks
    if not spec.tie_word_embeddings:
        lm_head = kernels.dense(reader.load(_HEAD, rows, spec.hidden_size, part=share.divided))
    elif share.divided is None:
        lm_head = kernels.tied(embedding)
    else:
        lm_head = kernels.tied(embedding[share.rank * rows : (share.rank + 1) * rows])
    unread = {name for name in reader.unread if not name.endswith("rotary_emb.inv_freq") and name != _HEAD}
    if unread and share.leads:
        _LOG.warning("%s: %d tensors of the checkpoint are not used, among them %s", model, len(unread), min(unread))
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=lm_head)


def _check_tied(model: str, reader: TensorReader, embedding: torch.Tensor) -> None:
    """Raises ModelLoadError: the checkpoint has a classifier of its own, which transformers would use."""
    if _HEAD not in reader.unread or torch.equal(reader.load(_HEAD, *embedding.shape), embedding):
        return
    raise ModelLoadError(
        model=model,
        reason=f"{_HEAD} is not model.embed_tokens.weight, although config.json: tie_word_embeddings=True says so",
        remedy=f"set tie_word_embeddings to false in config.json, or remove {_HEAD} if the embedding is meant",
    )


def _load_layer(projections: ProjectionReader, config: DecoderConfig, index: int) -> LayerWeights:
    reader, share = projections.tensors, projections.share
    whole, spec, traits = config.spec, share.spec_of(config.spec), config.traits
    prefix, hidden = f"model.layers.{index}", spec.hidden_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    of_kv = share.kv_heads(whole)
    qkv = {
        f"{attention}.q_proj": (q_dim, share.divided),
        f"{attention}.k_proj": (kv_dim, of_kv),
        f"{attention}.v_proj": (kv_dim, of_kv),
    }

    def feed_forward() -> FeedForward:
        mixture = traits.mixture
        if mixture is not None and index not in mixture.dense_layers:
            return load_mixture(projections, mixture, spec, prefix)
        gate_up = {f"{mlp}.{name}": (spec.intermediate_size, share.divided) for name in ("gate_proj", "up_proj")}
        down, has_bias = f"{mlp}.down_proj", traits.mlp_bias
        return GatedMlp(
            gate_up=projections.by_rows(gate_up, hidden, has_bias=has_bias),
            down=projections.by_columns(down, hidden, spec.intermediate_size, has_bias=has_bias),
        )

    return LayerWeights(
        input_norm=reader.load(f"{prefix}.input_layernorm.weight", hidden),
        qkv=projections.by_rows(qkv, hidden, has_bias=traits.qkv_bias),
        head_norms=_head_norms(reader, attention, spec.head_dim) if traits.qk_norm else None,
        output=projections.by_columns(f"{attention}.o_proj", hidden, q_dim, has_bias=traits.output_bias),
        post_attention_norm=reader.load(f"{prefix}.post_attention_layernorm.weight", hidden),
        feed_forward=feed_forward(),
        sinks=reader.load(f"{attention}.sinks", spec.num_heads, part=share.divided) if traits.has_sinks else None,
    )


def _head_norms(reader: TensorReader, attention: str, head_dim: int) -> HeadNorms:
    query, key = (reader.load(f"{attention}.{name}.weight", head_dim) for name in ("q_norm", "k_norm"))
    return HeadNorms(query=query, key=key)


def _largest_product_bytes(spec: ModelSpec) -> int:
    """Of one that is laid anew for products: an embedding stays as it was read."""
    qkv = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = max(
        qkv,
        2 * spec.intermediate_size,
        2 * spec.expert_intermediate_size,
        0 if spec.tie_word_embeddings else spec.vocab_size,
    )
    return rows * spec.hidden_size * spec.dtype_bytes


def load_mixture(projections: ProjectionReader, traits: MixtureTraits, spec: ModelSpec, prefix: str) -> Mixture:
    """`spec` is that of the rank, which has its share of each expert's columns.

    Raises ModelLoadError: a tensor is missing, broken or of another shape than config.json implies.
    """
    reader, share = projections.tensors, projections.share
    inner, hidden, has_bias = spec.expert_intermediate_size, spec.hidden_size, traits.has_biases
    names = [f"{prefix}.{traits.experts}.{number}" for number in range(spec.num_experts)]

    def expert(name: str) -> GatedMlp:
        gate_up = {f"{name}.{part}": (inner, share.divided) for part in (traits.gate, traits.up)}
        return GatedMlp(
            gate_up=projections.by_rows(gate_up, hidden, has_bias=has_bias),
            down=projections.by_columns(f"{name}.{traits.down}", hidden, inner, has_bias=has_bias),
            clamped=traits.clamped_gate,
        )

    def grouped() -> GroupedExperts:
        assert traits.clamped_gate is None, "loading refuses such experts on GPUs"
        gate_ups = {f"{name}.{part}.weight": inner for name in names for part in (traits.gate, traits.up)}
        downs = {f"{name}.{traits.down}.weight": hidden for name in names}
        gate_up = reader.load_stacked(gate_ups, hidden, parts=dict.fromkeys(gate_ups, share.divided))
        down = reader.load_stacked(downs, inner, parts=dict.fromkeys(downs, share.columns))
        return GroupedExperts(
            gate_up=Linear(gate_up.view(len(names), 2 * inner, hidden)),
            down=Linear(down.view(len(names), hidden, inner)),
        )

    router_name = f"{prefix}.{traits.router}"
    router_bias = projections.bias({router_name: (spec.num_experts, None)}) if has_bias else None
    router = Linear(reader.load(f"{router_name}.weight", spec.num_experts, hidden), router_bias)
    experts: Experts = LoopedExperts(mlps=tuple(map(expert, names))) if _is_cpu(router) else grouped()
    return Mixture(
        router=router, experts=experts, experts_per_token=spec.experts_per_token, normalises=traits.normalises
    )


def _is_cpu(router: Linear) -> bool:
    return router.weight.device.type == "cpu"


Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(work: Callable[[Item], Result], items: Iterable[Item], num_threads: int) -> tuple[Result, ...]:
    """Results in the order of `items`. The first error that is met is raised; what has not begun then is left out, and
    other errors hold nothing of what their calls had made.
    """
    if num_threads == 1:
        return tuple(map(work, items))
    is_inference = torch.is_inference_mode_enabled()  # like torch's number of threads, it is a thread's own
    torch_threads = torch.get_num_threads()

    def worked(item: Item) -> Result:
        with torch.inference_mode(is_inference):
            return work(item)

    pool = ThreadPoolExecutor(num_threads, "read-weights", initializer=use_torch_threads, initargs=(1,))
    futures = [pool.submit(worked, item) for item in items]
    try:
        return tuple([future.result() for future in futures])
    except BaseException as met:
        pool.shutdown(cancel_futures=True)
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None and error is not met:
                let_go(error)
        raise
    finally:
        pool.shutdown()
        torch.set_num_threads(torch_threads)  # also what threads that are new start with
