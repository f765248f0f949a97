"""SGLang with muxfleet's dispatcher."""

from pdmux_actor.backends.entries.entry import BackendEntry
from pdmux_actor.backends.sglang.options import SGLANG_MEMORY_SHARE


def _fillable_bytes(device_bytes: int) -> int:
    return int(SGLANG_MEMORY_SHARE * device_bytes)


BACKEND = BackendEntry(
    name="sglang",
    about="SGLang with muxfleet's dispatcher, one model per unit",
    kinds={"cpu": "sglang_cpu", "cuda": "sglang_cuda"},
    program="pdmux_actor.backends.sglang.process",
    max_models=1,
    divides_on=("cuda",),
    is_watched=False,
    fillable_bytes=_fillable_bytes,
)
