"""Defines what a backend says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from profiler.native_refusal import NativeDevice

OWN_PROGRAM = "pdmux_actor.serving.process"


def _all_of_it(device_bytes: int) -> int:
    return device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """`name` is what the fleet file uses; `about` and `kinds` are its line of docs/sglang.md.

    `kinds`: by device of a pool, what its engine process is started as. `program` is the module which that runs.
    `stands_for`: no fleet file names it; it takes the place of that backend on its devices. `max_models` fit into one
    unit; None: as many as memory holds. `divides_on`: devices of which a unit may have several, with its models divided
    among them. `moves_kv_on`: devices whose KV can go to other units, and come from there. `takes_adapters`: LoRA
    adapters beside their base. `reads_safetensors`: it needs weights in folders of Hugging Face's layout. `is_watched`:
    its process reports what its loop does, and is killed when that hangs; else it watches itself. `fillable_bytes`:
    what models and their KV may fill of a GPU. `native_on`: by what its process is started as, the device on which it
    runs models by muxfleet's own code, which does not run every one (profiler/native_refusal.py). `compiled_kinds`: of
    its kinds those whose engine runs where the scheduler is compiled, too (ADR 21).
    """

    name: str
    about: str
    kinds: Mapping[str, str]
    program: str = OWN_PROGRAM
    stands_for: str | None = None
    max_models: int | None = None
    divides_on: tuple[str, ...] = ()
    moves_kv_on: tuple[str, ...] = ()
    takes_adapters: bool = False
    reads_safetensors: bool = False
    is_watched: bool = True
    fillable_bytes: Callable[[int], int] = _all_of_it
    native_on: Mapping[str, NativeDevice] = field(default_factory=dict)
    compiled_kinds: tuple[str, ...] = ()
