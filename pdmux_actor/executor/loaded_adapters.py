"""The adapters of a torch executor's models."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.adapter_share import share_of
from pdmux_actor.models.decoder import Decoder
from pdmux_actor.models.lora import AdapterSlots
from pdmux_actor.models.lora_checkpoint import read_adapter
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.uploads import Upload, copy_in_place, moved


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
