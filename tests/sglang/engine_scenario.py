"""Run by test_sglang_engine.py in a process of its own, since some of it kills SGLang:

    python engine_scenario.py stock|plugin FOLDER CHECKPOINT
    python engine_scenario.py stock-divisions|plugin-divisions FOLDER CHECKPOINT

SGLang's multiplexing loop is the real one, on the clock of standins/stage.py; where a step is about the midst of a
prefill, the prefill stands still there. Writes what it saw to FOLDER/seen.json after every step, and with the plugin
FOLDER/config.json and FOLDER/records.msgpack.
"""

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import sglang
import stage
import yaml
from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

from pdmux_actor.backends.sglang.plugin_config import PluginConfig, write_config
from pdmux_actor.backends.sglang.plugin_line import PluginLine
from pdmux_actor.backends.sglang.snapshot import SLO_KEY
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.gpus.h200 import DEVICE as H200
from profiler.specs import ModelSpec

PARTITIONS = ((112, 20), (72, 60), (16, 116))
# So slow that predictions are of the order of what this machine does, and a long prompt is many slices.
DEVICE = replace(H200, peak_flops_per_s=2e10, memory_bandwidth_bytes_per_s=2e10)
LONG, SHORT = 3000, 40
LOOSE_S, TIGHT_S, NEVER_S = 30.0, 1e-6, 1e9
PATIENCE_S = 120.0
IN_MID_PREFILL = 4  # of the layers


def prompt(length, salt):
    return [(salt * 131 + 7 * i) % 600 + 5 for i in range(length)]


class Scenario:
    def __init__(self, variant, folder, checkpoint):
        self.plugged = variant.startswith("plugin")
        self.folder = folder
        self.checkpoint = checkpoint
        self.threshold = 50 if variant.endswith("divisions") else 1  # of the batch size, for the first partition
        self.seen = {}
        self.line = PluginLine(folder / "plugin.sock", lambda load: None)
        self.engine = None

    def note(self, **what):
        self.seen.update(what)
        (self.folder / "seen.json").write_text(json.dumps(self.seen))

    def multiplexing_file(self):
        path = self.folder / "multiplexing.yaml"
        config = json.loads((self.checkpoint / "config.json").read_text())
        plugin = PluginConfig(
            socket=str(self.line.path),
            multiplexes=True,
            model="m",
            spec=ModelSpec.from_config(config, "float32"),
            device=DEVICE,
            num_gpus=1,
            partitions=PARTITIONS,
            policy="muxwise",
            scheduler=SchedulerSettings(max_batch_tokens=8192),
            quota_tokens=16384,
            records=True,
        )
        write_config(path, plugin)
        (self.folder / "config.json").write_bytes(msgspec.json.encode(plugin))
        document = yaml.safe_load(path.read_text())
        document["split_forward_token_budget"] = LONG  # upstream: one layer of a long prompt
        document["manual_divisions"] = [[p, d, self.threshold + i] for i, (p, d) in enumerate(PARTITIONS)]
        if not self.plugged:
            del document["muxfleet"]
        path.write_text(yaml.safe_dump(document))
        return path

    async def start(self):
        await self.line.listen()
        self.line.expect_hello()
        self.engine = sglang.Engine(
            model_path=str(self.checkpoint),
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            dtype="float32",
            disable_cuda_graph=True,
            disable_radix_cache=True,  # runs of one scenario shall not help each other
            mem_fraction_static=0.3,
            max_total_tokens=16384,
            max_prefill_tokens=8192,
            skip_server_warmup=True,
            incremental_streaming_output=True,
            enable_pdmux=True,
            pdmux_config_path=str(self.multiplexing_file()),
            sm_group_num=len(PARTITIONS) + 2,
            chunked_prefill_size=-1,
            disable_overlap_schedule=True,
            log_level="error",
        )
        if self.plugged:
            hello = await asyncio.wait_for(self.line.hello(), PATIENCE_S)
            self.note(missing_hooks=list(hello.missing), groups=[list(group) for group in hello.groups])

    async def generate(self, rid, length, tokens, *, salt=0, tbt_s=LOOSE_S, due_s=NEVER_S, out=None):
        """(tokens, finish type)"""
        out = [] if out is None else out
        params = {
            "temperature": 0,
            "max_new_tokens": tokens,
            "ignore_eos": True,
            "custom_params": {SLO_KEY: [0.0, due_s, tbt_s]},
        }
        stream = await self.engine.async_generate(
            input_ids=prompt(length, salt), sampling_params=params, stream=True, rid=rid
        )
        finish = None
        async for chunk in stream:
            reason = chunk["meta_info"]["finish_reason"]
            finish = reason and reason["type"]
            if finish != "abort":
                out += chunk["output_ids"]
        return out, finish

    def start_generating(self, *args, **what):
        return asyncio.create_task(self.generate(*args, **what))

    async def start_held(self, rid, *args, **what):
        """(task, time on the scheduler's clock): its prefill stands still until the scheduler is told something."""
        stage.hold(self.folder, rid, IN_MID_PREFILL)
        task = self.start_generating(rid, *args, **what)
        await self.until(lambda: stage.held_at_s(self.folder, rid) is not None)
        return task, stage.held_at_s(self.folder, rid)

    async def until(self, condition, patience_s=PATIENCE_S):
        async with asyncio.timeout(patience_s):
            while not condition():  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.01)

    # ---- steps ----

    async def mixed_load(self):
        """Short and long prompts that come while others decode."""
        tasks = []
        for i, length in enumerate((SHORT, 900, 300, LONG, 60, 1500, 20, 700)):
            tbt_s = TIGHT_S if i >= 4 else LOOSE_S
            tasks.append(self.start_generating(f"mixed-{i}", length, 24, salt=i, tbt_s=tbt_s))
            await asyncio.sleep(0.15)
        results = await asyncio.gather(*tasks)
        self.note(mixed=[tokens for tokens, _ in results], finishes=[finish for _, finish in results])

    async def targets(self):
        """A long prompt comes while one decodes that has a loose target, then one that has a tight one."""
        for name, tbt_s in (("loose", LOOSE_S), ("tight", TIGHT_S)):
            out = []
            decoding = self.start_generating(name, SHORT, 3000, salt=40, tbt_s=tbt_s, out=out)
            await self.until(lambda out=out: len(out) > 3)
            await self.generate(f"beside-{name}", LONG, 2, salt=41)
            self.engine.tokenizer_manager.abort_request(rid=name)
            await decoding

    async def preemption(self):
        """A short prompt that cannot wait comes behind a long one that can; predictions know both by then."""
        for i in range(6):
            await self.generate(f"warm-{i}", SHORT, 2, salt=30 + i)
        patient, urgent = [], []
        long, now_s = await self.start_held("patient", LONG, 4, salt=21, out=patient)
        # On the stage's clock the rest of the long one takes two seconds, the short one hardly any time.
        short = self.start_generating("urgent", SHORT, 4, salt=22, due_s=now_s + 1.0, out=urgent)
        await self.until(lambda: patient or urgent)
        self.note(first_to_speak="patient" if patient else "urgent")
        results = await asyncio.gather(long, short)
        self.note(preemption=[tokens for tokens, _ in results])

    async def abort_in_prefill(self):
        task, _ = await self.start_held("aborted", LONG, 24, salt=9)
        self.engine.tokenizer_manager.abort_request(rid="aborted")
        tokens, finish = await task
        self.note(aborted_tokens=len(tokens), aborted_finish=finish)

    async def pause(self):
        out = []
        task = self.start_generating("paused", SHORT, 3000, salt=11, out=out)
        await self.until(lambda: len(out) > 20)
        manager = self.engine.tokenizer_manager
        await manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
        await asyncio.sleep(0.5)  # for tokens that were on their way
        before = len(out)
        with contextlib.suppress(TimeoutError):
            await self.until(lambda: len(out) > before, patience_s=1.0 if self.plugged else PATIENCE_S)
        during = len(out) - before
        await manager.continue_generation(ContinueGenerationReqInput())
        await self.until(lambda: len(out) > before + during + 20)
        manager.abort_request(rid="paused")
        await task
        self.note(tokens_while_paused=during)

    async def flush_in_prefill(self):
        task, _ = await self.start_held("flushed", LONG, 8, salt=13)
        answer = await self.engine.tokenizer_manager.flush_cache()
        self.note(flush_success=answer.success)
        tokens, finish = await asyncio.wait_for(task, PATIENCE_S)
        self.note(flushed_tokens=len(tokens), flushed_finish=finish)

    async def divisions(self):
        out = []
        first = self.start_generating("first", SHORT, 3000, salt=1, out=out)
        await self.until(lambda: len(out) > 3)
        await asyncio.wait_for(self.generate("second", 500, 4, salt=2), PATIENCE_S)
        self.engine.tokenizer_manager.abort_request(rid="first")
        await asyncio.wait_for(first, PATIENCE_S)
        self.note(divisions_survived=True)

    async def run(self, variant):
        await self.start()
        self.note(started=True)
        if variant.endswith("divisions"):
            await self.divisions()
        else:
            await self.mixed_load()
            if self.plugged:
                await self.targets()
            await self.preemption()
            await self.abort_in_prefill()
            await self.pause()
            if self.plugged:
                told = await self.line.records()
                (self.folder / "records.msgpack").write_bytes(msgspec.msgpack.encode(told.records))
            await self.flush_in_prefill()
        self.note(ended=True)
        self.engine.shutdown()
        await self.line.close()


if __name__ == "__main__":
    variant, folder, checkpoint = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    os.environ[stage.FOLDER] = str(folder)
    asyncio.run(Scenario(variant, folder, checkpoint).run(variant))
