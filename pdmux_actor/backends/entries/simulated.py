"""muxfleet's own engine on a device of which only the times are there."""

from pdmux_actor.backends.entries.entry import BackendEntry
from placement.estimation.memory import fillable_bytes

BACKEND = BackendEntry(
    name="simulated",
    about="native on a simulated device: made-up tokens at the speed of a GPU model",
    kinds={"simulated": "simulated"},
    stands_for="native",
    divides_on=("simulated",),
    takes_adapters=True,
    fillable_bytes=fillable_bytes,
    compiled_kinds=("simulated",),
)
