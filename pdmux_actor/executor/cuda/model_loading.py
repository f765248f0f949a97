"""Brings models and adapters onto a GPU, and puts models to sleep beside it: the work of the one thread that loads."""

from collections.abc import Callable

import torch

from pdmux_actor.executor.cuda.asleep_models import AsleepModels
from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.device_loss import DeviceLoss
from pdmux_actor.executor.cuda.lane_device import LaneDevice
from pdmux_actor.executor.cuda.model_memory import Admit, ModelMemory
from pdmux_actor.executor.cuda.warm_up import WarmUp
from pdmux_actor.executor.loaded_adapters import LoadedAdapters
from pdmux_actor.executor.loading import LoadedModel, check_room, load_decoder, needed_by
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.load_progress import OnProgress
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.triton_operators import TritonOperators
from placement.estimation.memory import resident_bytes
from placement.launch_limits import LaunchLimits

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
