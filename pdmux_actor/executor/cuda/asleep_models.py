"""Keeps the weights of models that sleep in host memory that is locked, so that the GPU copies by itself."""

import threading
from collections import deque

import torch

from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.host_copy import HostCopy, HostRegion, copy_to_host, host_bytes, moved_from_host
from pdmux_actor.executor.host_memory import check_host_room, spare_host_bytes
from pdmux_actor.executor.loading import LoadedModel, awakened
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.operators import DecoderOperators


class AsleepModels:
    def __init__(self, lanes: LaneDevice, *, unlocks_at_once: bool) -> None:
        """`unlocks_at_once`: the memory of who wakes; else it waits for `unlock_one`, or for who falls asleep."""
        self._lanes = lanes
        self._unlocks_at_once = unlocks_at_once
        self._copies: dict[str, HostCopy] = {}
        self._unlocked = UnlockedPieces()

    def put(self, info: ModelInfo, decoder: LayeredDecoder, most_bytes: int) -> int:
        """Returns the bytes of host memory that its weights take. Raises HostMemoryShort."""
        needed_bytes = host_bytes(decoder.weights)
        self._unlocked.unlock_all()  # what they hold nobody else has
        check_host_room(info.model, needed_bytes, min(most_bytes, spare_host_bytes()))
        region = HostRegion(needed_bytes, self._lanes)
        try:
            with torch.inference_mode():
                self._copies[info.model] = copy_to_host(info, decoder, region, self._lanes.copying)
        except BaseException:
            region.let_go()
            raise
        return needed_bytes

    def info(self, model: str) -> ModelInfo:
        return self._copies[model].info

    def woken(self, model: str, operators: DecoderOperators) -> LoadedModel:
        """The model on the device again; it is to be forgotten here."""
        host = self._copies[model]
        weights = moved_from_host(host, self._lanes.device, self._lanes.copying)
        decoder = awakened(host.config, weights, host.info.max_model_len, operators, upload=self._lanes.upload)
        return LoadedModel(info=host.info, decoder=decoder)

    def forget(self, model: str) -> None:
        region = self._copies.pop(model).region
        if self._unlocks_at_once:
            region.let_go()
        else:
            self._unlocked.add(region)

    def unlock_one(self) -> bool:
        """Unlocks a piece of memory that nobody needs. Returns whether there was one."""
        return self._unlocked.unlock_one()


class UnlockedPieces:
    """Unlocks host memory from which weights were copied, a piece at a time, in moments without launches. NVIDIA's
    documentation says of cudaHostUnregister that it unmaps the pages, and neither that it waits for the device nor that
    it does not; AMD's call of that name does. Whoever launches meanwhile may be held up in any case, and a large model
    has hundreds of pieces: so its memory goes when no launch is in flight, or at once where somebody needs it. Any
    thread may call.
    """

    def __init__(self) -> None:
        self._regions: deque[HostRegion] = deque()
        self._lock = threading.Lock()

    def add(self, region: HostRegion) -> None:
        """Its pieces wait from now on. Nothing copies from or to it any more."""
        self._regions.append(region)

    def unlock_one(self) -> bool:
        """Returns whether a piece waited. None does while another thread unlocks all."""
        if not self._regions or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._unlock_one()
        finally:
            self._lock.release()

    def unlock_all(self) -> None:
        with self._lock:
            while self._unlock_one():
                pass

    def _unlock_one(self) -> bool:
        while self._regions:
            if self._regions[0].let_go_of_a_piece():
                return True
            self._regions.popleft()
        return False
