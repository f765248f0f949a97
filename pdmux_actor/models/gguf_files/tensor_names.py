"""Says where a GGUF file has the tensors of a checkpoint in Hugging Face layout."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdmux_actor.models.gguf_files.opened_file import GgufFile
from profiler.families.entry import MixtureTraits

_UNUSED = ("rope_freqs.weight",)  # config.json has it
_WHOLE: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_INTERLEAVED = ("attn_q", "attn_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """`expert` is its number among those that are stored together. `interleaved`: llama.cpp rotates neighbouring
    dimensions of a head, and so keeps the rows of each head's two halves in turns.
    """

    tensor: str
    expert: int | None = None
    interleaved: bool = False


def tensor_sources(file: GgufFile, mixture: MixtureTraits | None) -> dict[str, TensorSource]:
    """Returns them by the names of Hugging Face's layout; a tensor that is known by none keeps its own."""
    return dict(_sources(file, mixture))


def _sources(file: GgufFile, mixture: MixtureTraits | None) -> Iterator[tuple[str, TensorSource]]:
    for tensor, place in file.tensors.items():
        if tensor in _UNUSED:
            continue
        stem, _, kind = tensor.rpartition(".")
        found = _LAYER_TENSOR.fullmatch(tensor)
        if found is None:
            yield f"{_WHOLE.get(stem, stem)}.{kind}", TensorSource(tensor=tensor)
            continue
        layer, part, kind = found.groups()
        prefix = f"model.layers.{layer}"
        if mixture is not None and part == "ffn_gate_inp":
            yield f"{prefix}.{mixture.router}.{kind}", TensorSource(tensor=tensor)
        elif mixture is not None and (name := _of_expert(part, mixture)) is not None:
            for expert in range(place.shape[0]):
                yield f"{prefix}.{mixture.experts}.{expert}.{name}.{kind}", TensorSource(tensor=tensor, expert=expert)
        else:
            interleaved = file.architecture == "llama" and part in _INTERLEAVED
            yield (
                f"{prefix}.{_OF_LAYER.get(part, part)}.{kind}",
                TensorSource(tensor=tensor, interleaved=interleaved),
            )


def _of_expert(part: str, mixture: MixtureTraits) -> str | None:
    return {"ffn_gate_exps": mixture.gate, "ffn_up_exps": mixture.up, "ffn_down_exps": mixture.down}.get(part)
