"""Another plugin of SGLang. Launches take the time that their work asks for, on the stand-in's clock, which only they
move: what is decided does not depend on the machine. And a prefill stops in its midst until the scheduler is told
something: `hold` and `held_at_s` are for a test, which meets the scheduler in the folder that STAGE_FOLDER names.
"""

import os
import time
from pathlib import Path

FOLDER = "STAGE_FOLDER"
_POLL_S = 0.005
_LAYER_S, _LAYER_S_PER_TOKEN, _DECODE_S = 0.001, 3e-5, 0.01


def hold(folder, rid, layer):
    """The prefill of this request, which is to come, shall stop before this layer, once."""
    (folder / f"hold-{rid}").write_text(str(layer))


def held_at_s(folder, rid):
    """The time on the scheduler's clock, once the prefill stands still; None before."""
    held = folder / f"held-{rid}"
    return float(held.read_text()) if held.exists() else None


def register():
    if FOLDER in os.environ:
        from sgl_kernel import spatial
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        from pdmux_actor.backends.sglang.launch_timer import LaunchClock

        spatial.Clock.at_s = 0.0
        LaunchClock.now_s = staticmethod(spatial.now_s)
        HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", _run_batch, HookType.AROUND)


def _run_batch(original, scheduler, batch, *args, **kwargs):
    from sgl_kernel import spatial

    took_s = _DECODE_S
    if batch.forward_mode.is_split_prefill():
        took_s = batch.split_forward_count * (_LAYER_S + _LAYER_S_PER_TOKEN * batch.extend_num_tokens)
        for req in batch.reqs:
            _wait(Path(os.environ[FOLDER]), req.rid, batch.split_index, scheduler.ipc_channels.recv_from_tokenizer)
    result = original(scheduler, batch, *args, **kwargs)
    spatial.Clock.at_s += took_s
    return result


def _wait(folder, rid, layer, inbox):
    order = folder / f"hold-{rid}"
    if not order.exists() or layer < int(order.read_text()):
        return
    from sgl_kernel import spatial

    order.unlink()
    written = folder / f"writing-{rid}"
    written.write_text(str(spatial.now_s()))
    written.rename(folder / f"held-{rid}")
    while not inbox.poll(0):
        time.sleep(_POLL_S)
