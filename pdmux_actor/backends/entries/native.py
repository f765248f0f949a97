"""muxfleet's own engine."""

from pdmux_actor.backends.entries.entry import BackendEntry
from placement.estimation.memory import fillable_bytes

BACKEND = BackendEntry(
    name="native",
    about="muxfleet's own engine, several models per unit",
    kinds={"cpu": "torch_cpu", "cuda": "torch_cuda"},
    reads_safetensors=True,
    divides_on=("cpu", "cuda"),
    moves_kv_on=("cpu",),
    takes_adapters=True,
    fillable_bytes=fillable_bytes,
    native_on={"torch_cpu": "cpu", "torch_cuda": "cuda"},
    compiled_kinds=("torch_cpu",),
)
