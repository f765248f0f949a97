"""Fits a device's rates and an engine's host time to steps that clients saw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from profiler.latency import Floats
from profiler.roofline import RooflineLatency
from profiler.served_steps import SeenLaunch
from profiler.specs import DeviceSpec, ModelSpec

FEWEST_OF_A_PHASE = 3
_FARTHEST = 20.0  # times the table's rate, or a part of it
_MOST_HOST_S, _MOST_CLIENT_S = 0.5, 10.0
_NOISE = 0.03  # of a timing; what is farther off counts less
# The table's rates are believed to a factor of 20 where the run says nothing: weights and host time look alike in the
# steps of one model unless contexts are deep.
_BELIEF = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFit:
    """`host_s`: what a step takes beside its launch; `client_s`: what a first token takes beyond that, on the way."""

    device: DeviceSpec
    host_s: float
    client_s: float

    def seen_s(self, spec: ModelSpec, num_gpus: int, launches: Sequence[SeenLaunch]) -> Floats:
        """Predicts launches as clients see them."""
        latency = RooflineLatency(self.device, num_gpus=num_gpus)
        shapes = [seen.launch for seen in launches]
        launch_s = [latency.mixed_s(spec, shape.chunks, shape.contexts, shape.sms) for shape in shapes]
        seen_s: Floats = np.array(launch_s) + np.array([self.beside_s(seen) for seen in launches])
        return seen_s

    def beside_s(self, seen: SeenLaunch) -> float:
        return self.host_s * seen.host_share + (self.client_s if seen.launch.prompts else 0.0)

    def mean_error(self, spec: ModelSpec, num_gpus: int, launches: Sequence[SeenLaunch]) -> float:
        """Returns the mean of |predicted / seen - 1|."""
        seen_s = np.array([seen.seconds for seen in launches])
        return float(np.abs(self.seen_s(spec, num_gpus, launches) / seen_s - 1).mean())


def is_enough(launches: Sequence[SeenLaunch]) -> bool:
    fitted = [m for m in launches if not m.is_held_out]
    phases = [m.launch.phase for m in fitted]
    return min(phases.count("prefill"), phases.count("decode")) >= FEWEST_OF_A_PHASE


def fit_rates(
    spec: ModelSpec, device: DeviceSpec, num_gpus: int, launches: Sequence[SeenLaunch], *, host_s: float
) -> RateFit:
    """Fits matrix rate, bandwidth, host time and way to relative errors; the shapes of kernels stay the device's.
    `host_s` is where the search starts. Held-out launches are not looked at.
    """
    assert is_enough(launches), "too few launches of a phase"
    fitted = [m for m in launches if not m.is_held_out]
    seen_s = np.array([m.seconds for m in fitted])

    def at(point: Floats) -> RateFit:
        flops, bytes_, host_ms, client_ms = (float(x) for x in point)
        rates = replace(
            device,
            peak_flops_per_s=device.peak_flops_per_s * np.exp(flops),
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * np.exp(bytes_),
        )
        return RateFit(device=rates, host_s=host_ms * 1e-3, client_s=client_ms * 1e-3)

    def errors(point: Floats) -> Floats:
        relative = np.log(at(point).seen_s(spec, num_gpus, fitted) / seen_s) / _NOISE
        return np.concatenate([relative, point[:2] / _BELIEF])

    edge = float(np.log(_FARTHEST))
    found = least_squares(
        errors,
        x0=np.array([0.0, 0.0, host_s * 1e3, 1.0]),
        bounds=([-edge, -edge, 0.0, 0.0], [edge, edge, _MOST_HOST_S * 1e3, _MOST_CLIENT_S * 1e3]),
        loss="soft_l1",
        x_scale=[0.1, 0.1, 1.0, 1.0],
    )
    fit = at(found.x)
    rates = replace(
        fit.device,
        peak_flops_per_s=float(fit.device.peak_flops_per_s),
        memory_bandwidth_bytes_per_s=float(fit.device.memory_bandwidth_bytes_per_s),
        source=f"{device.source}; matrix rate and bandwidth fitted to a run",
    )
    return replace(fit, device=rates)
