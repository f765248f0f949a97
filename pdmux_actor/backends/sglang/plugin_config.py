"""Works out how an engine process tells the plugin what to do: a section of SGLang's own multiplexing file.

The file is a server argument, so it reaches every process of the engine, and no other SGLang on the machine.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec, ModelSpec

_SECTION = "muxfleet"
_ANY_BATCH = 1  # threshold of SGLang's own table; a higher first one would crash its choice of a partition


class PluginConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`socket` is where the engine process listens. `multiplexes`: SGLang runs its multiplexing loop. With `records`
    the plugin keeps what every decision was made from. `profile` is a file of `muxfleet profile`, `guard` one in which
    it keeps what it learns about contention.
    """

    socket: str
    multiplexes: bool
    model: str
    spec: ModelSpec
    device: DeviceSpec
    num_gpus: int
    partitions: tuple[tuple[int, int], ...]
    policy: str
    scheduler: SchedulerSettings
    quota_tokens: int
    profile: str | None = None
    guard: str | None = None
    records: bool = False


def write_config(path: Path, config: PluginConfig) -> int:
    """Returns `sm_group_num`, which SGLang wants in a server argument as well."""
    group_count = len(config.partitions) + 2  # and one group for each lane that is alone
    document: dict[str, Any] = {
        "sm_group_num": group_count,
        "manual_divisions": [[prefill, decode, _ANY_BATCH] for prefill, decode in config.partitions],
        _SECTION: msgspec.to_builtins(config),
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return group_count


def read_config(path: str | None) -> PluginConfig | None:
    """None: not an engine that muxfleet started."""
    if not path:
        return None
    document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    section = document.get(_SECTION) if isinstance(document, dict) else None
    return None if section is None else msgspec.convert(section, PluginConfig)
