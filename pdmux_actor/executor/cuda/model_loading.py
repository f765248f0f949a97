"""Brings models and adapters onto a GPU, and puts models to sleep beside it: the work of the one thread that loads."""

import threading
from collections import deque
from collections.abc import Callable

import torch

from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.device_loss import DeviceLoss
from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.cuda.model_memory import Admit, ModelMemory
from pdmux_actor.executor.cuda.warm_up import WarmUp
from pdmux_actor.executor.host_copy import HostCopy, HostRegion, copy_to_host, host_bytes, moved_from_host
from pdmux_actor.executor.host_memory import check_host_room, spare_host_bytes
from pdmux_actor.executor.loaded_adapters import LoadedAdapters
from pdmux_actor.executor.loading import LoadedModel, awakened, check_room, load_decoder, needed_by
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.models.decoder import LayeredDecoder
from pdmux_actor.models.load_progress import OnProgress
from pdmux_actor.models.operators import DecoderOperators
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.triton_operators import TritonOperators
from placement.estimation.memory import resident_bytes
from placement.launch_limits import LaunchLimits


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


_FASTEST_DTYPE = "bfloat16"  # on every GPU that is new enough for this executor


class ModelLoading:
    def __init__(
        self,
        lanes: LaneDevice,
        warm_up: WarmUp,
        *,
        limits: LaunchLimits,
        share: RankShare,
        free_bytes: Callable[[], int],
        memory: ModelMemory,
        loss: DeviceLoss,
    ) -> None:
        """A model needs room for launches of `limits` beside its weights; `share` is what is loaded of each. `loss` is
        told where the device is.
        """
        self._lanes = lanes
        self._warm_up = warm_up
        self._limits = limits
        self._share = share
        self._free_bytes = free_bytes
        self._memory = memory
        self._loss = loss
        self._operators = TritonOperators(warm_up.workspace)
        self._adapters = LoadedAdapters(upload=lanes.upload)
        # Ranks that follow turn no loop, in which memory could wait to be unlocked.
        self._asleep = AsleepModels(lanes, unlocks_at_once=share.num_ranks > 1)

    def model(self, source: ModelSource, on_progress: OnProgress) -> LoadedModel:
        """Raises ModelLoadError."""
        with torch.inference_mode(), self._loss.noted(), self._memory.of(source.model) as admit:
            return self._read(source, on_progress, admit)

    def _read(self, source: ModelSource, on_progress: OnProgress, admit: Admit) -> LoadedModel:
        loaded = load_decoder(
            source,
            on_progress=on_progress,
            block_bytes=self._warm_up.block_bytes,
            available_bytes=self._free_bytes(),
            fastest_dtype=lambda spec: _FASTEST_DTYPE,
            device=self._lanes.device,
            operators=self._operators,
            launch_limits=self._limits,
            share=self._share,
            upload=self._lanes.upload,
            on_admitted=admit,
        )
        self._warm_up.model(loaded)
        return loaded

    def adapter(self, model: str, base: LoadedModel | CudaModel, source: str, revision: str | None) -> None:
        """Raises ModelLoadError."""
        with torch.inference_mode(), self._loss.noted(), self._memory.of(model) as admit:
            self._adapters.load(model, base, source, revision, admit)
            try:
                self._warm_up.adapter(model, base)
            except Exception:
                self._adapters.drop(model)
                raise

    def drop_adapter(self, model: str) -> None:
        """Leaves alone what is no adapter."""
        self._adapters.drop(model)

    def put_to_sleep(self, held: LoadedModel | CudaModel, most_bytes: int) -> int:
        """Returns the bytes of host memory that its weights take. Raises HostMemoryShort."""
        with self._loss.noted():
            return self._asleep.put(held.info, held.decoder, most_bytes)

    def wake(self, model: str) -> LoadedModel:
        """Its kernels were compiled when it came first. Raises ModelTooLarge: it sleeps on."""
        info = self._asleep.info(model)
        needed_bytes = resident_bytes(info.spec, limits=self._limits, context_tokens=info.max_model_len)
        check_room(model, info.spec, needed_bytes, self._free_bytes())
        with torch.inference_mode(), self._loss.noted(), self._memory.of(model) as admit:
            admit(needed_by(info.spec, needed_bytes), needed_bytes)
            woken = self._asleep.woken(model, self._operators)
        self.forget_sleeper(model)
        return woken

    def forget_sleeper(self, model: str) -> None:
        self._asleep.forget(model)

    def unlock_one(self) -> bool:
        """Unlocks a piece of host memory in which nobody sleeps any more. Returns whether there was one."""
        return self._asleep.unlock_one()
