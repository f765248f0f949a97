"""A decoder's weights once more: the same structure over other tensors."""

from collections.abc import Callable

from torch import Tensor

from pdmux_actor.models.decoder import AnyWeights, DecoderWeights, LayerWeights
from pdmux_actor.models.linear import Classifier, Projection
from pdmux_actor.models.module_weights import ModuleWeights
from pdmux_actor.models.operators import HeadNorms

OfTensor = Callable[[Tensor], Tensor]
OfProjection = Callable[[Projection], Projection]


def copied(weights: AnyWeights, of_tensor: OfTensor, of_projection: OfProjection) -> AnyWeights:
    """A classifier that is the embedding stays that."""
    if isinstance(weights, ModuleWeights):
        return weights.mapped(of_tensor, of_projection)
    embedding = of_tensor(weights.embedding)
    layers = tuple(_layer(layer, of_tensor, of_projection) for layer in weights.layers)
    final_norm, head = of_tensor(weights.final_norm), weights.lm_head
    is_tied = head.shares(weights.embedding)
    copied_head = head.copied(lambda _: embedding, packed=False) if is_tied else of_projection(head)
    assert isinstance(copied_head, Classifier), "a classifier's copy is one"
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, lm_head=copied_head)


def _layer(layer: LayerWeights, of_tensor: OfTensor, of_projection: OfProjection) -> LayerWeights:
    norms = layer.head_norms
    return LayerWeights(
        input_norm=of_tensor(layer.input_norm),
        qkv=of_projection(layer.qkv),
        head_norms=None if norms is None else HeadNorms(query=of_tensor(norms.query), key=of_tensor(norms.key)),
        output=of_projection(layer.output),
        post_attention_norm=of_tensor(layer.post_attention_norm),
        feed_forward=layer.feed_forward.copied(of_projection),
        sinks=None if layer.sinks is None else of_tensor(layer.sinks),
    )


def num_bytes_of(weights: AnyWeights, rounded: Callable[[int], int]) -> int:
    """Sums the bytes of all tensors, each `rounded`."""
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += rounded(tensor.numel() * tensor.dtype.itemsize)
        return tensor

    def count_projection(projection: Projection) -> Projection:
        nonlocal total
        total += sum(map(rounded, projection.tensor_bytes))
        return projection

    copied(weights, count, count_projection)
    return total
