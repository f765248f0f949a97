"""Measures launches of one model inside SGLang: its `profiler.probe.Probe`."""

import asyncio
import dataclasses

from msgspec import structs

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.backends.sglang.launch import spec_of, why_not_multiplexed
from pdmux_actor.backends.sglang.options import partitions_of
from pdmux_actor.backends.sglang.process import device_of
from pdmux_actor.errors import EngineDied, LaunchFailed
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import Slo
from pdmux_actor.models.checkpoint import resolve_checkpoint
from pdmux_actor.serving.commands import EngineSettings
from profiler.probe import LaunchShape, ProbeLimits

_MOST_PROMPTS = 4  # of a launch that is measured, beside as many sequences as a unit has
_NO_TARGET = Slo(ttft_s=1e9, tbt_s=1e9)


class SglangProbe:
    """An engine of its own, as a unit would start it, that serves nobody.

    Shares are those of the partitions that it has; prefill's and decode's differ where SMs come in steps.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        model: str,
        source: str,
        revision: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Starts SGLang and loads the model. Raises ModelLoadError, EngineStartFailed."""
        self._model = model
        self.device = device_of(settings)
        self.num_gpus = settings.num_gpus
        self.spec = spec_of(model, resolve_checkpoint(model, source, revision), dtype or settings.dtype)
        assignment = ModelAssignment(
            model=model,
            source=source,
            quota_blocks=(settings.kv_pool_bytes or 0) // settings.block_bytes,
            slo=_NO_TARGET,
            revision=revision,
            dtype=dtype,
        )
        self._runner = asyncio.Runner()
        self._is_closed = False
        self._engine = NativeEngine(_with_room_for_prompts(settings))
        try:
            self._runner.run(self._engine.start())
            max_len = self._runner.run(self._engine.add_model(assignment))
        except BaseException:
            self.close()
            raise
        self.limits = self._limits(settings, max_len)

    def time_s(self, launch: LaunchShape) -> float:
        return self._time(launch, None)

    def time_beside_s(self, decode: LaunchShape, prefill: LaunchShape) -> float:
        return self._time(decode, prefill)

    def close(self) -> None:
        """Twice does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._engine.pid is not None:
            self._runner.run(self._engine.stop())
        self._runner.close()

    def _time(self, launch: LaunchShape, beside: LaunchShape | None) -> float:
        try:
            return self._runner.run(self._engine.time_launch(self._model, launch, beside))
        except EngineDied as death:
            raise LaunchFailed(model=self._model, reason=str(death)) from death

    def _limits(self, settings: EngineSettings, max_len: int) -> ProbeLimits:
        options, whole = settings.sglang, self.device.num_sms
        divides = why_not_multiplexed(options, self.spec, settings.kind, self.device) is None
        partitions = partitions_of(options, self.device) if divides else ()
        return ProbeLimits(
            shares=(*sorted(prefill for prefill, _ in partitions), whole),
            decode_shares=(*sorted(decode for _, decode in partitions), whole),
            fuses=False,
            max_sequence_tokens=max_len,
            max_batch_tokens=settings.scheduler.max_batch_tokens,
            max_sequences=settings.scheduler.max_running_sequences,
            max_kv_tokens=(settings.kv_pool_bytes or 0) // self.spec.kv_bytes_per_token,
        )


def _with_room_for_prompts(settings: EngineSettings) -> EngineSettings:
    sequences = settings.scheduler.max_running_sequences + _MOST_PROMPTS
    return structs.replace(settings, scheduler=dataclasses.replace(settings.scheduler, max_running_sequences=sequences))
