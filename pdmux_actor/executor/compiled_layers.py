"""Runs layers over sequences that decode by one compiled call, over the blocks where keys and values lie."""

import ctypes
from collections.abc import Sequence
from ctypes import byref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdmux_actor.executor.kv_storage import KvView
from pdmux_actor.executor.packed_batch import DecodeGroup, PackedBatch
from pdmux_actor.models.compiled.compiled_linear import CompiledInt8Linear
from pdmux_actor.models.compiled.kernels import pointer_of
from pdmux_actor.models.compiled.panel_linear import PanelKernels, PanelLinear
from pdmux_actor.models.decoder import Decoder, LayerWeights
from pdmux_actor.models.linear import Projection
from pdmux_actor.models.mixture import GatedMlp

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class ProductPointers(ctypes.Structure):
    """Has the fields of decode_layers.cpp, as all structures below."""

    _fields_ = tuple((name, _POINTER) for name in ("weight", "shift", "scale", "bias"))


class LayerPointers(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("input_norm", "query_norm", "key_norm", "post_norm")),
        *((name, ProductPointers) for name in ("qkv", "output", "gate_up", "down")),
        ("sinks", _POINTER),
        ("window", _INT),
    )


class ShapeFields(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("hidden", "heads", "kv_heads", "dim", "intermediate")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


class PlaceFields(ctypes.Structure):
    _fields_ = (
        ("pool", _POINTER),
        ("block_elements", _INT),
        ("row_table", _POINTER),
        ("columns", _INT),
        ("per_row", _INT),
    )


class GroupFields(ctypes.Structure):
    _fields_ = (("first", _INT), ("rows", _POINTER), ("row_stride", _INT), ("contexts", _POINTER), ("sequences", _INT))


class BatchFields(ctypes.Structure):
    _fields_ = (
        ("tokens", _INT),
        ("rows", _POINTER),
        ("offsets", _POINTER),
        ("of_x", _POINTER),
        ("of_swapped", _POINTER),
        ("rotary_stride", _INT),
        ("groups", _POINTER),
        ("num_groups", _INT),
    )


class CompiledLayers:
    """One attached model's. Each value has the same bits as by the decoder's own layers and BlocksInPlace."""

    def __init__(self, kernels: PanelKernels, decoder: Decoder, view: KvView, row_table: npt.NDArray[np.int64]) -> None:
        """Only where `serve` says so."""
        config, layers = decoder.config, decoder.weights.layers
        spec = config.spec
        windows = config.traits.layer_windows or (None,) * len(layers)
        sinks = [None if layer.sinks is None else layer.sinks.float() for layer in layers]
        self._held = (decoder, row_table, sinks)  # what the pointers point at
        pointers = [_pointers(*of_layer) for of_layer in zip(layers, windows, sinks, strict=True)]
        self._layers = (LayerPointers * len(layers))(*pointers)
        self._shape = ShapeFields(
            spec.hidden_size,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.intermediate_size,
            config.rms_norm_eps,
            spec.head_dim**-0.5,
        )
        self._place = PlaceFields(*view.place, row_table.ctypes.data, row_table.shape[1], view.tokens_per_row)
        stacked = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self._scratch_numbers = spec.hidden_size + stacked + 3 * spec.intermediate_size
        self._run = kernels.decode_layers

    @staticmethod
    def serve(decoder: Decoder) -> bool:
        """They are for dense layers whose products are all compiled."""
        return all(
            isinstance(layer.feed_forward, GatedMlp)
            and layer.feed_forward.clamped is None
            and all(
                isinstance(product, PanelLinear | CompiledInt8Linear)
                for product in (layer.qkv, layer.output, layer.feed_forward.gate_up, layer.feed_forward.down)
            )
            for layer in decoder.weights.layers
        )

    def forward(self, batch: PackedBatch, hidden: Tensor, rotary: Tensor, first_layer: int, last_layer: int) -> Tensor:
        """Does what Decoder.forward_layers does, for a batch without chunks and adapters. `hidden` is overwritten."""
        hidden = hidden.contiguous()
        scratch = torch.empty(batch.num_tokens * self._scratch_numbers, dtype=hidden.dtype)
        groups = _groups(batch.decodes)
        of_batch = BatchFields(
            batch.num_tokens,
            batch.token_rows.ctypes.data,
            batch.token_offsets.data_ptr(),
            rotary.data_ptr(),
            rotary.data_ptr() + rotary.stride(0) * rotary.itemsize,
            rotary.stride(1),
            ctypes.addressof(groups),
            len(groups),
        )
        self._run(
            *(self._layers, first_layer, last_layer, byref(self._shape), byref(self._place), byref(of_batch)),
            *(hidden.data_ptr(), scratch.data_ptr()),
        )
        return hidden


def _pointers(layer: LayerWeights, window_tokens: int | None, sinks: Tensor | None) -> LayerPointers:
    mlp, norms = layer.feed_forward, layer.head_norms
    assert isinstance(mlp, GatedMlp), "`serve` was asked"
    of_heads = (None, None) if norms is None else (norms.query.data_ptr(), norms.key.data_ptr())
    return LayerPointers(
        *(layer.input_norm.data_ptr(), *of_heads, layer.post_attention_norm.data_ptr()),
        *(_of_product(product) for product in (layer.qkv, layer.output, mlp.gate_up, mlp.down)),
        *(pointer_of(sinks), window_tokens or 0),
    )


def _of_product(product: Projection) -> ProductPointers:
    assert isinstance(product, PanelLinear | CompiledInt8Linear), "`serve` was asked"
    return ProductPointers(*product.pointers, pointer_of(product.bias))


def _groups(decodes: Sequence[DecodeGroup]) -> "ctypes.Array[GroupFields]":
    """Its pointers are those of `decodes`, which outlive it."""
    fields = [
        GroupFields(
            *(group.first, group.rows.ctypes.data, group.rows.shape[1]),
            *(group.context_tokens.ctypes.data, len(group.context_tokens)),
        )
        for group in decodes
    ]
    return (GroupFields * len(fields))(*fields)
