"""Tokens of adapters, batched with each other and their base, are PEFT's, however the work is cut up (invariant 6)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cpu_rig import CpuRig, make_prompt, outputs
from lora_adapters import OF_ATTENTION, SHAPES, PeftReference, write_adapters
from measured_cpu import measured_cpu

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.events import Arrival, AttachAdapter, AttachModel, Stop
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.sequence import TokenSequence
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.roofline import RooflineLatency

TINY = {"num_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
BASES = {
    "llama": CheckpointShape(model_type="llama", **TINY),
    "qwen2": CheckpointShape(model_type="qwen2", attention_bias=True, tie_word_embeddings=True, **TINY),
    "qwen3": CheckpointShape(model_type="qwen3", **TINY),
    "qwen3_moe": CheckpointShape(model_type="qwen3_moe", **TINY),
    "mixtral": CheckpointShape(model_type="mixtral", **TINY),
    "gpt_oss": CheckpointShape(model_type="gpt_oss", attention_bias=True, sliding_window=40, **TINY),
}
DENSE = ("llama", "qwen2", "qwen3")
NEW_TOKENS = 12
LENGTHS = (1, 300, 17, 2, 64, 130, 5, 33, 250)
MEMBERS = (None, "queries", "all", "inner", "all", None, "queries", "queries", "inner")


class Family:
    """A base, its adapters, and what PEFT says."""

    def __init__(self, folder: Path, shape: CheckpointShape) -> None:
        self.base = folder / "base"
        write_random_checkpoint(self.base, shape, seed=3)
        shapes = SHAPES if shape.model_type in DENSE else OF_ATTENTION
        self.adapters = write_adapters(self.base, folder / "adapters", shapes)
        self._reference = PeftReference(self.base, self.adapters)
        self._known: dict[tuple[str | None, int], list[int]] = {}

    def expected(self, adapter: str | None, length: int, said: Sequence[int] | None = None) -> list[int]:
        """`said` is what is held against it."""
        if (adapter, length) not in self._known:
            prompt = make_prompt(length)
            self._known[adapter, length] = self._reference.tokens(adapter, prompt, NEW_TOKENS, likely=said)
        return self._known[adapter, length]


@pytest.fixture(scope="module", params=list(BASES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp(request.param), BASES[request.param])


@pytest.fixture
def rig(family: Family) -> Iterator[CpuRig]:
    rig = CpuRig()
    rig.load("base", family.base)
    for name, folder in family.adapters.items():
        rig.executor.load_adapter(name, "base", str(folder), revision=None)
    yield rig
    rig.close()


def sequences(rig: CpuRig) -> list[TokenSequence]:
    return [
        rig.sequence(member or "base", make_prompt(length), NEW_TOKENS, base="base" if member else None)
        for member, length in zip(MEMBERS, LENGTHS, strict=True)
    ]


def expected(family: Family, told: Sequence[Sequence[int]]) -> list[list[int]]:
    """What PEFT says instead of what was told."""
    return [family.expected(*which) for which in zip(MEMBERS, LENGTHS, told, strict=True)]


def test_adapters__change_what_the_base_says(family: Family) -> None:
    told = {tuple(family.expected(adapter, 64)) for adapter in (None, *family.adapters)}

    assert len(told) == 1 + len(family.adapters)


@pytest.mark.parametrize(("layers_per_slice", "steps_per_launch"), [(1000, 1), (2, 4)])
def test_prefill_and_decode__adapters_and_base_in_one_batch__match_peft(
    rig: CpuRig, family: Family, layers_per_slice: int, steps_per_launch: int
) -> None:
    batch = sequences(rig)

    rig.prefill(batch, layers_per_slice)
    rig.decode(batch, NEW_TOKENS - 1, steps_per_launch)

    told = outputs(batch, NEW_TOKENS)
    assert told == expected(family, told)


@pytest.mark.parametrize("chunk_tokens", [11, 96])
def test_chunked_prefill_fused_with_decode__adapters_and_base__match_peft(
    rig: CpuRig, family: Family, chunk_tokens: int
) -> None:
    batch = sequences(rig)

    rig.generate_chunked(batch, NEW_TOKENS, chunk_tokens)

    told = outputs(batch, NEW_TOKENS)
    assert told == expected(family, told)


def test_adapters__come_and_go_while_others_decode__match_peft(rig: CpuRig, family: Family) -> None:
    """Slots are taken again, and stacks grow and lose nothing."""
    kept = rig.sequence("inner", make_prompt(17), NEW_TOKENS, base="base")
    rig.prefill([kept])
    rig.executor.detach_model("queries")
    rig.decode([kept], 3)
    for name in ("more", "queries"):
        folder = family.adapters["all" if name == "more" else "queries"]
        rig.executor.load_adapter(name, "base", str(folder), revision=None)
    others = [rig.sequence(name, make_prompt(33), NEW_TOKENS, base="base") for name in ("more", "queries")]
    rig.prefill(others)
    rig.decode([kept, *others], NEW_TOKENS - 4)

    assert outputs([kept], NEW_TOKENS) == [family.expected("inner", 17)]
    told = outputs(others, NEW_TOKENS - 4)
    assert told == [family.expected(name, 33)[: NEW_TOKENS - 4] for name in ("all", "queries")]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_engine__any_policy__second_turns_too__match_peft(family: Family, policy: str) -> None:
    """Twice the same prompts, so that prefixes are cached, each model's and adapter's own."""
    executor = TorchCpuExecutor(
        kv_pool_bytes=16 << 20, block_bytes=4096, default_dtype="float32", device=measured_cpu()
    )
    told: dict[str, list[int]] = {}
    waiting = {f"{turn}/{i}" for turn in range(2) for i in range(len(MEMBERS))}

    def note(events) -> None:
        for event in events:
            assert event.error is None, event.error
            told.setdefault(event.request_id, []).extend(t.token_id for t in event.tokens)
            if event.finish is not None:
                waiting.discard(event.request_id)
                if not waiting:
                    inbox.put(Stop())
                elif len(waiting) == len(MEMBERS):
                    ask(1)

    def ask(turn: int) -> None:
        for i, (member, length) in enumerate(zip(MEMBERS, LENGTHS, strict=True)):
            request = GenerateRequest(
                request_id=f"{turn}/{i}",
                model=member or "base",
                prompt_token_ids=make_prompt(length),
                sampling=SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True),
                slo=Slo(ttft_s=5.0, tbt_s=0.001),
            )
            inbox.put(Arrival(request))

    settings = SchedulerSettings(max_batch_tokens=256, chunk_budget_tokens=48)
    latency = RooflineLatency(executor.device)
    loop, inbox = build_engine(executor, policy=policy, settings=settings, latency=latency, outbox=note)
    info = executor.load_model(ModelSource(model="base", source=str(family.base)))
    inbox.put(AttachModel(info, 1000))
    for name, folder in family.adapters.items():
        executor.load_adapter(name, "base", str(folder), revision=None)
        inbox.put(AttachAdapter(name, "base", 1000))
    ask(0)
    loop.run()

    first, second = ([told[f"{turn}/{i}"] for i in range(len(MEMBERS))] for turn in range(2))
    assert first == second == expected(family, first)
    loads = {load.model: load for load in loop.scheduler.load_report().models}
    assert all(load.prefix_hit_tokens_total > 0 for load in loads.values())
    assert len(loads) == 4
