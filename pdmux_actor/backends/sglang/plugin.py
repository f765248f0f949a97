"""Starts muxfleet's SGLang plugin: a scheduler is given our dispatcher only if its multiplexing file has muxfleet's
section (plugin_config.py).
"""

import logging
import pkgutil
from typing import Any

from pdmux_actor.backends.sglang.plugin_config import PluginConfig, read_config

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def start_scheduler(original: Any, scheduler: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    config = read_config(server_args.pdmux_config_path)
    if config is None:
        original(scheduler, server_args, *args, **kwargs)
        return
    # Not earlier: they would be imported by every process of every SGLang.
    from pdmux_actor.backends.sglang.dispatch_state import PluginDispatch
    from pdmux_actor.backends.sglang.hooks import DISPATCH_STATE, REPORTER, Reporter
    from pdmux_actor.backends.sglang.link import SchedulerLink

    dispatch_state = PluginDispatch(scheduler, config)
    setattr(scheduler, DISPATCH_STATE, dispatch_state)
    _install()
    original(scheduler, server_args, *args, **kwargs)
    if scheduler.tp_group.rank_in_group == 0:
        link = SchedulerLink(config.socket)
        link.send(_hello(scheduler, config))
        setattr(scheduler, REPORTER, Reporter(link, dispatch_state, scheduler))


def _install() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from pdmux_actor.backends.sglang.hooks import AROUND, REPLACE, RPCS

    for hooks, kind in ((REPLACE, HookType.REPLACE), (AROUND, HookType.AROUND)):
        for target, hook in hooks.items():
            # Where another plugin has a hook already, SGLang would leave ours out without a word: it goes around that.
            HookRegistry._hooks.pop(target, None)  # SGLang has no public way
            HookRegistry._patched.discard(target)
            HookRegistry.register(target, hook, kind)
    for name, method in RPCS.items():
        setattr(pkgutil.resolve_name(_SCHEDULER), name, method)
    HookRegistry.apply_hooks()  # logs what fails and goes on: `_missing` finds it


def _hello(scheduler: Any, config: PluginConfig) -> Any:
    from pdmux_actor.backends.sglang.link import PluginHello

    groups = tuple((int(p), int(d)) for p, d in scheduler.sm_counts) if config.multiplexes else ()
    return PluginHello(
        missing=_missing(scheduler),
        groups=groups,
        total_tokens=int(scheduler.max_total_num_tokens),
        context_tokens=int(scheduler.model_config.context_len),
    )


def _missing(scheduler: Any) -> tuple[str, ...]:
    """Hooks that this scheduler does not go through."""
    from pdmux_actor.backends.sglang.hooks import AROUND, REPLACE

    missing = []
    for target, hook in (*AROUND.items(), *REPLACE.items()):
        owner, name = target.rsplit(".", 1)
        holder = pkgutil.resolve_name(owner)
        patched = getattr(holder, name, None)
        is_overridden = isinstance(scheduler, holder) and getattr(type(scheduler), name, None) is not patched
        if is_overridden or not _is_outermost(hook, patched):
            missing.append(target)
    return tuple(missing)


def _is_outermost(hook: Any, patched: Any) -> bool:
    """SGLang's wrapper of a hook holds it in its closure."""
    cells = getattr(getattr(patched, "__func__", patched), "__closure__", None) or ()
    return any(cell.cell_contents is hook for cell in cells)
