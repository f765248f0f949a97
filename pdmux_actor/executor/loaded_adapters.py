"""The adapters of a torch executor's models."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.lora import AdapterSlots
from pdmux_actor.models.lora_checkpoint import LoraAdapter, LowRankPair, read_adapter
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.tensor_reader import TensorPart
from pdmux_actor.models.uploads import Upload, copy_in_place, moved
from profiler.adapter_sites import Site
from profiler.specs import ModelSpec


class _Held(Protocol):
    """A model that is loaded, or attached."""

    @property
    def decoder(self) -> object: ...

    @property
    def info(self) -> ModelInfo: ...


class LoadedAdapters:
    """`load` and `drop` come from one thread at a time. `share` is what this process has of each base, `upload` copies
    to where bases are.
    """

    def __init__(self, share: RankShare = WHOLE, upload: Upload = copy_in_place) -> None:
        self._share, self._upload = share, upload
        self._slots: dict[str, AdapterSlots] = {}  # those of its base, by adapter

    def load(
        self,
        model: str,
        base: _Held,
        source: str,
        revision: str | None,
        on_read: Callable[[str, int], None] = lambda what, num_bytes: None,
    ) -> None:
        """Reads an adapter of `base`. `on_read` is told what takes how many bytes, before any is taken where the base
        is. Raises ModelLoadError.
        """
        decoder = base.decoder
        if not isinstance(decoder, Decoder):
            raise ModelLoadError(
                model=model,
                reason="its base takes no adapters: they are added to muxfleet's own decoders only",
                remedy="merge it into its base (peft: merge_and_unload) and serve the result as a model of its own",
            )
        with torch.inference_mode():
            whole = base.info.whole or base.info.spec
            embedding = decoder.weights.embedding
            adapter = share_of(read_adapter(model, source, revision, whole, embedding.dtype), self._share, whole)
            on_read("its matrices", adapter.num_bytes)
            decoder.adapters.load(model, adapter.mapped(partial(moved, embedding.device, self._upload)))
        self._slots[model] = decoder.adapters

    def drop(self, model: str) -> None:
        """Leaves alone what is no adapter."""
        slots = self._slots.pop(model, None)
        if slots is not None:
            slots.drop(model)


_BY_COLUMNS = (*Site.OUTPUT.value, *Site.DOWN.value)


def share_of(adapter: LoraAdapter, share: RankShare, whole: ModelSpec) -> LoraAdapter:
    """`whole` is the base that the ranks divide. Where they divide rows of a projection, each has its columns of B and
    all of A; where columns, its part of A and all of B: what it adds to its part of the sum.
    """
    if share.num_ranks == 1:
        return adapter
    of_kv = share.kv_heads(whole)

    def cut(name: str, pair: LowRankPair) -> LowRankPair:
        if name in _BY_COLUMNS:
            first, last = _range(pair.a.shape[1], share.columns)
            return LowRankPair(a=pair.a[:, first:last], b=pair.b)
        first, last = _range(pair.b.shape[1], of_kv if name in ("k_proj", "v_proj") else share.divided)
        return LowRankPair(a=pair.a, b=pair.b[:, first:last])

    return LoraAdapter(layers=tuple({name: cut(name, pair) for name, pair in of.items()} for of in adapter.layers))


def _range(size: int, part: TensorPart | None) -> tuple[int, int]:
    if part is None:
        return 0, size
    return part.index * size // part.count, (part.index + 1) * size // part.count
