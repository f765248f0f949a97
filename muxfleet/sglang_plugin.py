"""Entry point of the group `sglang.srt.plugins`: every SGLang on the machine calls `register` in each of its processes.

It changes nothing by itself, nor claims a name, unless a scheduler is given a multiplexing file.
"""

from typing import Any

from muxfleet.own_packages import claim

_START = "sglang.srt.managers.scheduler.Scheduler.__init__"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_START, _start_scheduler, HookType.AROUND)


def _start_scheduler(original: Any, scheduler: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    if not server_args.pdmux_config_path:
        original(scheduler, server_args, *args, **kwargs)
        return
    claim()
    from pdmux_actor.backends.sglang.plugin import start_scheduler

    start_scheduler(original, scheduler, server_args, *args, **kwargs)
