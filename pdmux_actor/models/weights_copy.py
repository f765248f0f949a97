"""A decoder's weights once more: the same structure over other tensors."""

from collections.abc import Callable

from torch import Tensor

from pdmux_actor.models.decoder import DecoderWeights, LayerWeights
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.operators import HeadNorms

OfTensor = Callable[[Tensor], Tensor]
OfLinear = Callable[[Linear], Linear]


def copied(weights: DecoderWeights, of_tensor: OfTensor, of_linear: OfLinear) -> DecoderWeights:
    """A classifier that is the embedding stays that."""
    embedding = of_tensor(weights.embedding)
    is_tied = weights.lm_head.shares(weights.embedding)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_layer(layer, of_tensor, of_linear) for layer in weights.layers),
        final_norm=of_tensor(weights.final_norm),
        lm_head=Linear(embedding, packed=False) if is_tied else of_linear(weights.lm_head),
    )


def _layer(layer: LayerWeights, of_tensor: OfTensor, of_linear: OfLinear) -> LayerWeights:
    norms = layer.head_norms
    return LayerWeights(
        input_norm=of_tensor(layer.input_norm),
        qkv=of_linear(layer.qkv),
        head_norms=None if norms is None else HeadNorms(query=of_tensor(norms.query), key=of_tensor(norms.key)),
        output=of_linear(layer.output),
        post_attention_norm=of_tensor(layer.post_attention_norm),
        gate_up=of_linear(layer.gate_up),
        down=of_linear(layer.down),
    )


def num_bytes_of(weights: DecoderWeights, rounded: Callable[[int], int]) -> int:
    """Sums the bytes of all tensors, each `rounded`."""
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += rounded(tensor.numel() * tensor.dtype.itemsize)
        return tensor

    def count_linear(linear: Linear) -> Linear:
        nonlocal total
        total += rounded(linear.num_elements * linear.dtype.itemsize)
        if linear.bias is not None:
            count(linear.bias)
        return linear

    copied(weights, count, count_linear)
    return total
