"""SGLang behind the Engine Protocol: what an actor does with it."""

import asyncio
import contextlib
import json
import os
import time

import msgspec
import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.backends.sglang.options import SglangOptions
from pdmux_actor.errors import EngineDied, ModelLoadError
from pdmux_actor.lease import ModelAssignment
from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Slo,
    StructuredKind,
    StructuredOutput,
)
from pdmux_actor.scheduling.decision import DecisionKind
from pdmux_actor.serving.commands import EngineSettings

PATIENCE_S = 120.0
SLO = Slo(ttft_s=5.0, tbt_s=0.2)
QUOTA_BLOCKS = 2000
SETTINGS = EngineSettings(
    kind="sglang_cpu",
    kv_pool_bytes=64 * 1024 * 1024,
    device_type="H200",  # what the stand-in of SGLang's kernels pretends
    policy="muxwise",
    sglang=SglangOptions(multiplexing="on", args={"sampling_backend": "pytorch"}),
)


def schema(document):
    return StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=json.dumps(document))


class Client:
    """Collects what the engine says of each request."""

    def __init__(self, engine):
        self.engine = engine
        self.tokens = {}
        self.ends = {}
        self._pump = asyncio.create_task(self._collect())

    async def _collect(self):
        async for events in self.engine.events():
            for event in events:
                self.tokens.setdefault(event.request_id, []).extend(event.tokens)
                if event.finish is not None:
                    assert event.request_id not in self.ends, "a request ends once"
                    self.ends[event.request_id] = event

    @staticmethod
    def prompt(tokens=30):
        return tuple((7 * i) % 600 + 5 for i in range(tokens))

    def submit(self, request_id, prompt_tokens=30, model="m", **sampling):
        sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
        self.engine.submit(
            GenerateRequest(
                request_id=request_id,
                model=model,
                prompt_token_ids=self.prompt(prompt_tokens),
                sampling=SamplingParams(**sampling),
                slo=SLO,
            )
        )

    async def until(self, condition):
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self._pump.done():
                await self._pump
            assert time.monotonic() < deadline_s, "not within the time"
            await asyncio.sleep(0.02)

    async def end_of(self, request_id):
        await self.until(lambda: request_id in self.ends)
        return self.ends[request_id]

    async def close(self):
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineDied):
            await self._pump


@contextlib.asynccontextmanager
async def engine_of(settings, environment, monkeypatch):
    for name in ("PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE"):
        monkeypatch.setenv(name, environment[name])
    engine = NativeEngine(settings, start_timeout_s=PATIENCE_S)
    await engine.start()
    client = Client(engine)
    try:
        yield engine, client
    finally:
        await engine.stop()
        await client.close()


def assignment(source, quota_blocks=QUOTA_BLOCKS, model="m"):
    return ModelAssignment(model=model, source=str(source), quota_blocks=quota_blocks, slo=SLO)


async def test_engine__whole_life__serves_aborts_limits_and_lets_go(small_checkpoint, sglang_environment, monkeypatch):
    async with engine_of(SETTINGS, sglang_environment, monkeypatch) as (engine, client):
        assert await engine.add_model(assignment(small_checkpoint)) == 4096

        client.submit("plain")
        client.submit("with logprobs", logprobs=2)
        client.submit("too long", prompt_tokens=4096)
        plain, refused = await client.end_of("plain"), await client.end_of("too long")
        await client.end_of("with logprobs")
        assert plain.finish is FinishReason.LENGTH
        assert len(client.tokens["plain"]) == 8
        assert [t.token_id for t in client.tokens["with logprobs"]] == [t.token_id for t in client.tokens["plain"]]
        for token in client.tokens["with logprobs"]:
            assert token.top[0] == (token.token_id, token.logprob)
            assert len(token.top) == 2
        assert refused.finish is FinishReason.ERROR
        assert "4096 tokens do not fit" in refused.error

        client.submit("goes on", max_tokens=8)
        await client.end_of("goes on")
        half = tuple(t.token_id for t in client.tokens["plain"][:3])
        engine.submit(
            GenerateRequest(
                request_id="moved here",
                model="m",
                prompt_token_ids=client.prompt(),
                output_token_ids=half,
                sampling=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
                slo=SLO,
            )
        )
        await client.end_of("moved here")
        assert half + tuple(t.token_id for t in client.tokens["moved here"]) == tuple(
            t.token_id for t in client.tokens["plain"]
        )

        client.submit("aborted", max_tokens=3000)
        await client.until(lambda: len(client.tokens.get("aborted", ())) > 3)
        engine.abort("aborted")
        assert (await client.end_of("aborted")).finish is FinishReason.ABORT
        await client.until(lambda: (load := engine.load_report()) is not None and load.models[0].running == 0)

        load = engine.load_report()
        assert load.models[0].quota_blocks == QUOTA_BLOCKS
        assert load.models[0].output_tokens_total >= 24
        excerpt = await engine.decisions(1000)
        kinds = {decision.kind for decision in excerpt.decisions}
        assert {DecisionKind.PREFILL, DecisionKind.DECODE, DecisionKind.PARTITION} <= kinds

        small_quota = 16 * load.models[0].blocks_per_row
        assert await engine.set_quotas({"m": small_quota}) == {"m": 16 * load.models[0].tokens_per_row}

        with pytest.raises(ModelLoadError, match="one model at a time"):
            await engine.add_model(assignment(small_checkpoint, model="other"))

        await engine.remove_model("m")
        client.submit("after")
        assert "not on this unit" in (await client.end_of("after")).error
        assert await engine.add_model(assignment(small_checkpoint)) == 4096
        assert engine.is_alive()


SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "kind": {"enum": ["red", "green"]}},
    "required": ["yes", "kind"],
    "additionalProperties": False,
}


async def test_schema__also_where_another_unit_began__output_follows_it(
    small_checkpoint, sglang_environment, monkeypatch
):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(small_checkpoint / "tokenizer.json"))
    async with engine_of(SETTINGS, sglang_environment, monkeypatch) as (engine, client):
        await engine.add_model(assignment(small_checkpoint))

        def text(request_id):
            return tokenizer.decode([token.token_id for token in client.tokens[request_id]])

        client.submit("beside", max_tokens=3000)  # a schema that is compiled must not wait until nothing decodes
        await client.until(lambda: len(client.tokens.get("beside", ())) > 3)
        constrained = {"max_tokens": 200, "ignore_eos": False, "structured_output": schema(SCHEMA)}
        for i in range(3):
            client.submit(f"json-{i}", temperature=1.0, seed=i, **constrained)
        ends = [await client.end_of(f"json-{i}") for i in range(3)]
        assert [end.finish for end in ends] == [FinishReason.STOP] * 3
        for i in range(3):
            assert set(json.loads(text(f"json-{i}"))) == {"yes", "kind"}
        assert "beside" not in client.ends
        engine.abort("beside")

        client.submit("whole", **constrained)
        await client.end_of("whole")
        tokens = [token.token_id for token in client.tokens["whole"]]
        for cut in (1, len(tokens) // 2):
            engine.submit(
                GenerateRequest(
                    request_id=f"from-{cut}",
                    model="m",
                    prompt_token_ids=client.prompt(),
                    output_token_ids=tuple(tokens[:cut]),
                    sampling=SamplingParams(temperature=0.0, **constrained),
                    slo=SLO,
                )
            )
            await client.end_of(f"from-{cut}")
            rest = [token.token_id for token in client.tokens[f"from-{cut}"]]
            assert tokens[:cut] + rest == tokens

        client.submit("nonsense", max_tokens=20, structured_output=schema({"type": "poem"}))
        refused = await client.end_of("nonsense")
        assert (refused.finish, refused.param) == (FinishReason.ERROR, "response_format")
        client.submit("after", max_tokens=4)
        assert (await client.end_of("after")).finish is FinishReason.LENGTH


async def test_model__leaves_and_comes_back__is_woken_unless_it_is_another(
    small_checkpoint, sglang_environment, monkeypatch, tmp_path
):
    """On a CPU no memory is given back, but all that happens around it does."""
    import psutil

    sleeping = msgspec.structs.replace(SETTINGS.sglang, sleep=True)
    settings = msgspec.structs.replace(SETTINGS, sglang=sleeping, host_memory_bytes=1 << 30)
    async with engine_of(settings, sglang_environment, monkeypatch) as (engine, client):

        def children():
            return {child.pid for child in psutil.Process(engine.pid).children(recursive=True)}

        def said(request_id):
            return [token.token_id for token in client.tokens[request_id]]

        def quota_reported():
            report = engine.load_report()  # None until the first one
            return None if report is None or not report.models else report.models[0].quota_blocks

        await engine.add_model(assignment(small_checkpoint))
        client.submit("before")
        await client.end_of("before")
        started = children()

        client.submit("cut off", max_tokens=3000)
        await client.until(lambda: len(client.tokens.get("cut off", ())) > 3)
        await engine.remove_model("m", sleep=True)
        assert "has left this unit" in (await client.end_of("cut off")).error
        assert engine.asleep().keys() == {"m"}
        client.submit("asleep")
        assert "not on this unit" in (await client.end_of("asleep")).error

        max_len = await engine.add_model(assignment(small_checkpoint, quota_blocks=QUOTA_BLOCKS // 2))
        client.submit("after")
        assert (await client.end_of("after")).finish is FinishReason.LENGTH
        assert said("after") == said("before")
        assert children() == started
        await client.until(lambda: quota_reported() == QUOTA_BLOCKS // 2)
        assert max_len <= 4096

        await engine.remove_model("m", sleep=True)
        await engine.add_model(assignment(small_checkpoint, model="other"))
        await client.until(lambda: not children() & started)  # killed, and gone when the system has reaped them
        assert not engine.asleep()
        client.submit("of another", model="other")
        assert (await client.end_of("of another")).finish is FinishReason.LENGTH


async def test_plugin__kept_away_by_sglangs_own_switch__model_is_refused(
    small_checkpoint, sglang_environment, monkeypatch
):
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    async with engine_of(SETTINGS, sglang_environment, monkeypatch) as (engine, _):
        with pytest.raises(ModelLoadError, match="plugin is not active") as refused:
            await engine.add_model(assignment(small_checkpoint))
        assert "SGLANG_PLUGINS" in refused.value.remedy


async def test_scheduler__killed__engine_dies_for_the_actor_to_see(small_checkpoint, sglang_environment, monkeypatch):
    import psutil

    async with engine_of(SETTINGS, sglang_environment, monkeypatch) as (engine, client):
        await engine.add_model(assignment(small_checkpoint))
        client.submit("running", max_tokens=3000)
        await client.until(lambda: len(client.tokens.get("running", ())) > 3)
        children = psutil.Process(engine.pid).children(recursive=True)
        scheduler = next(p for p in children if "scheduler" in p.name() or "scheduler" in " ".join(p.cmdline()))
        os.kill(scheduler.pid, 9)
        with pytest.raises(EngineDied):
            await client.until(lambda: False)
        assert not engine.is_alive()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, PATIENCE_S)
        assert not alive, "an orphan stays behind"
