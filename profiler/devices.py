"""Devices as data: data-sheet figures, what kernels were measured to reach of them, and where both come from.

Batches of prompts and decodes were measured on the RTX cards only; `fused_decode_tokens` of the others is like theirs.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from profiler.data_sheet_units import GIGA
from profiler.errors import UnknownDevice
from profiler.specs import DeviceSpec
from traces.register import Register

_SAME_MODEL = 2  # parts of a name in common: a family's letters and a number

DEVICES = Register("profiler.gpus", "DEVICE", DeviceSpec)


def device_named(name: str) -> DeviceSpec:
    """Looks a GPU up, whatever its case.

    Raises:
        UnknownDevice: with the nearest known name.

    >>> device_named("h200").num_sms
    132
    """
    by_folded_name = {known.lower(): device for known, device in DEVICES.items()}
    device = by_folded_name.get(name.lower())
    if device is not None:
        return device
    raise UnknownDevice(name=name, nearest=_nearest(name.lower(), tuple(by_folded_name)), known=tuple(DEVICES))


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """Who has most letters and numbers in common with the name: A100 is A100-80G, not H100; else who is spelt alike."""
    parts = {other: _letters_and_numbers(other) for other in known}
    shared = {other: len(_letters_and_numbers(name) & parts[other]) for other in known}
    likest = max(known, key=lambda other: (shared[other], -len(parts[other])))
    near = [likest] if shared[likest] >= _SAME_MODEL else get_close_matches(name, known, n=1)
    return next((device for device in DEVICES if device.lower() in near), None)


def _letters_and_numbers(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|[0-9]+", name))


def laptop_cpu(*, num_cores: int, memory_bytes: int) -> DeviceSpec:
    """A generic x86 laptop in float32, to plan and simulate with before anything was measured.

    >>> laptop_cpu(num_cores=2, memory_bytes=8 * 1024**3).name
    'cpu-2'
    """
    return DeviceSpec(
        name=f"cpu-{num_cores}",
        num_sms=num_cores,
        peak_flops_per_s=50 * GIGA * num_cores,
        memory_bandwidth_bytes_per_s=20 * GIGA,
        memory_bytes=memory_bytes,
        launch_overhead_s=10e-6,
        # One core of two drew all of the bandwidth that two draw; prefill gained 1.75x = 2 ** 0.8 from the second.
        bandwidth_saturation_share=0.12,
        compute_scaling_exponent=0.8,
        # Prefill of 256 tokens against bfloat16 (docs/measurements/engine.md).
        int8_compute_share=0.95,
        int4_compute_share=0.45,
        # gloo between two processes over loopback, each on a core.
        link_bandwidth_bytes_per_s=0.8 * GIGA,
        all_reduce_start_s=65e-6,
        source="AVX2 core near 3 GHz, two DDR4 channels, an order of magnitude; scaling, links: two cores",
    )
