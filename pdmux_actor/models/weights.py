"""Reads a decoder's weights from safetensors files, fused and laid out as the decoder wants them."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import read_json
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.decoder import DecoderWeights, LayerWeights
from pdmux_actor.models.feed_forward import GatedMlp
from pdmux_actor.models.linear import Linear, MakeProjection, Projection
from pdmux_actor.models.operators import HeadNorms

_LOG = logging.getLogger(__name__)
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_STORED_DTYPES = (*_DTYPES.values(), torch.float64)


def torch_dtype(name: str) -> torch.dtype:
    """`name` is one of profiler.specs.DTYPE_BYTES."""
    return _DTYPES[name]


class _TensorReader:
    """Named tensors of one checkpoint; remembers which ones were asked for."""

    def __init__(
        self, model: str, folder: Path, dtype: torch.dtype, device: torch.device | None, stack: ExitStack
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._device = device
        self._unread: dict[str, Path] = {}
        self._files: dict[Path, safe_open] = {}
        for path, names in _tensor_files(model, folder).items():
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
                present = set(opened.keys())
            except (SafetensorError, OSError) as error:
                raise self._broken(path, error) from error
            self._files[path] = opened
            for name in present if names is None else names & present:
                self._unread[name] = path

    @property
    def unread(self) -> frozenset[str]:
        return frozenset(self._unread)

    def read(self, target: Tensor, name: str) -> None:
        """Copies tensor `name` into `target`, which has the expected shape."""
        path = self._unread.pop(name, None)
        if path is None:
            raise ModelLoadError(
                model=self._model,
                reason=f"tensor {name} is missing",
                remedy="check that config.json belongs to these weights and that every shard is there",
            )
        try:
            tensor: Tensor = self._files[path].get_tensor(name)  # type: ignore[no-untyped-call]  # the library has no types
        except (SafetensorError, OSError, RuntimeError) as error:
            raise self._broken(path, error) from error
        if tensor.shape != target.shape:
            raise ModelLoadError(
                model=self._model,
                reason=f"tensor {name} has shape {list(tensor.shape)}, config.json implies {list(target.shape)}",
                remedy="check that config.json belongs to these weights",
            )
        if tensor.dtype not in _STORED_DTYPES:  # float8 or integers mean nothing without their scales
            raise ModelLoadError(
                model=self._model,
                reason=f"tensor {name} holds {str(tensor.dtype).removeprefix('torch.')}",
                remedy="use an unquantised checkpoint (float32, bfloat16 or float16)",
            )
        target.copy_(tensor)

    def load(self, name: str, *shape: int) -> Tensor:
        target = torch.empty(shape, dtype=self._dtype, device=self._device)
        self.read(target, name)
        return target

    def load_stacked(self, parts: Mapping[str, int], *trailing: int) -> Tensor:
        """Tensors `[size, *trailing]` on top of each other, each read straight into its place."""
        target = torch.empty((sum(parts.values()), *trailing), dtype=self._dtype, device=self._device)
        offset = 0
        for name, size in parts.items():
            self.read(target[offset : offset + size], name)
            offset += size
        return target

    def _broken(self, path: Path, error: Exception) -> ModelLoadError:
        return ModelLoadError(
            model=self._model,
            reason=f"{path} is missing or not a complete safetensors file: {error}",
            remedy="copy or download the file again",
        )


def load_weights(
    model: str,
    folder: Path,
    config: DecoderConfig,
    device: torch.device | None = None,
    make_projection: MakeProjection = Linear,
) -> DecoderWeights:
    """Onto `device`; None is the CPU.

    Raises:
        ModelLoadError: a file or tensor is missing, broken or of another shape than config.json implies.
    """
    spec = config.spec
    with ExitStack() as stack:
        reader = _TensorReader(model, folder, torch_dtype(spec.dtype), device, stack)
        embedding = reader.load("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        layers = tuple(
            _load_layer(reader, config, make_projection, f"model.layers.{index}") for index in range(spec.num_layers)
        )
        final_norm = reader.load("model.norm.weight", spec.hidden_size)
        if spec.tie_word_embeddings:
            lm_head: Projection = Linear(embedding, packed=False)
        else:
            lm_head = make_projection(reader.load("lm_head.weight", spec.vocab_size, spec.hidden_size), None)
        unread = {
            name for name in reader.unread if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"
        }
    if unread:
        _LOG.warning("%s: %d tensors of the checkpoint are not used, among them %s", model, len(unread), min(unread))
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=lm_head)


def _load_layer(
    reader: _TensorReader, config: DecoderConfig, make_projection: MakeProjection, prefix: str
) -> LayerWeights:
    spec = config.spec
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_dim, kv_dim = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = {"q_proj": q_dim, "k_proj": kv_dim, "v_proj": kv_dim}
    gate_up = {"gate_proj": spec.intermediate_size, "up_proj": spec.intermediate_size}

    def stacked(owner: str, parts: Mapping[str, int], kind: str, *trailing: int) -> Tensor:
        return reader.load_stacked({f"{owner}.{name}.{kind}": size for name, size in parts.items()}, *trailing)

    def projection(owner: str, parts: Mapping[str, int], in_size: int, has_bias: bool) -> Projection:
        weight = stacked(owner, parts, "weight", in_size)
        return make_projection(weight, stacked(owner, parts, "bias") if has_bias else None)

    hidden = spec.hidden_size
    return LayerWeights(
        input_norm=reader.load(f"{prefix}.input_layernorm.weight", hidden),
        qkv=projection(attention, qkv, hidden, config.traits.qkv_bias),
        head_norms=HeadNorms(
            query=reader.load(f"{attention}.q_norm.weight", spec.head_dim),
            key=reader.load(f"{attention}.k_norm.weight", spec.head_dim),
        )
        if config.traits.qk_norm
        else None,
        output=projection(attention, {"o_proj": hidden}, q_dim, config.traits.output_bias),
        post_attention_norm=reader.load(f"{prefix}.post_attention_layernorm.weight", hidden),
        feed_forward=GatedMlp(
            gate_up=projection(mlp, gate_up, hidden, config.traits.mlp_bias),
            down=projection(mlp, {"down_proj": hidden}, spec.intermediate_size, config.traits.mlp_bias),
        ),
    )


def _is_beside(file: object) -> bool:
    """A checkpoint is somebody else's: its index opens nothing outside its folder."""
    return isinstance(file, str) and not Path(file).is_absolute() and ".." not in Path(file).parts


def _tensor_files(model: str, folder: Path) -> dict[Path, set[str] | None]:
    """Weight files and the tensors each holds by the index; None stands for all."""
    if (folder / _INDEX_FILE).exists():
        weight_map = read_json(model, folder, _INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not all(_is_beside(file) for file in weight_map.values()):
            raise ModelLoadError(
                model=model,
                reason=f"{folder / _INDEX_FILE} has no weight_map of tensor names to files in its folder",
                remedy="copy or download the file again",
            )
        files: dict[Path, set[str] | None] = {}
        for name, file in weight_map.items():
            names = files.setdefault(folder / file, set())
            assert names is not None
            names.add(name)
        return files
    if (folder / _SINGLE_FILE).exists():
        return {folder / _SINGLE_FILE: None}
    raise ModelLoadError(
        model=model,
        reason=f"{folder} holds neither {_SINGLE_FILE} nor {_INDEX_FILE}",
        remedy="convert the checkpoint to safetensors (transformers: model.save_pretrained)",
    )
