"""What engines learn about contention outlives them."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import EngineStartFailed
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.known_latency import ContentionStore
from profiler.contention import ContentionGuard, GuardCell
from profiler.gpus.h100 import DEVICE as H100
from profiler.guard_file import read_guard_grid

CELL = GuardCell(32, 5, 0, 2, 4)
NEIGHBOUR = CELL._replace(decode_sms=64)


def teach(guard: ContentionGuard, cell: GuardCell, slowdown: float) -> None:
    for _ in range(4):
        guard.observe(cell, slowdown)


def test_contention_store__next_life__begins_with_what_was_learned_over_what_was_profiled(tmp_path: Path) -> None:
    file = str(tmp_path / "guard.json")
    profiled = ContentionGuard(grid={CELL: 1.5, NEIGHBOUR: 1.6})
    first = ContentionStore(file, H100, profiled)
    teach(first.guard, CELL, 1.1)
    first.keep()

    second = ContentionStore(file, H100, profiled)

    assert (second.guard.slowdown(CELL), second.guard.slowdown(NEIGHBOUR)) == (1.1, 1.6)


def test_contention_store__nothing_learned__writes_nothing(tmp_path: Path) -> None:
    ContentionStore(str(tmp_path / "guard.json"), H100, None).keep()

    assert list(tmp_path.iterdir()) == []


def test_contention_store__folder_has_gone__is_logged_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    keeper = ContentionStore(str(folder / "guard.json"), H100, None)
    teach(keeper.guard, CELL, 1.1)
    folder.rmdir()

    with caplog.at_level(logging.ERROR):
        keeper.keep()

    assert "cannot be written" in caplog.text


def settings(file: Path) -> EngineSettings:
    return EngineSettings(
        kind="simulated", device_type="H100", kv_pool_bytes=8 << 30, block_bytes=65536, guard=str(file)
    )


def request(number: int, *, prompt_tokens: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"r{number}",
        model="m",
        prompt_token_ids=tuple(5 + number for _ in range(prompt_tokens)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        slo=Slo(ttft_s=10.0, tbt_s=0.02),
    )


async def test_engine__prompts_beside_decodes__leaves_what_it_learned_in_the_file(
    tmp_path: Path, make_assignment
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = json.loads((Path(__file__).parents[3] / "examples/models/llama-3.1-8b/config.json").read_text())
    (model / "config.json").write_text(json.dumps(config))
    file = tmp_path / "guard.json"
    prompts = list(range(1, 9))
    engine = NativeEngine(settings(file), start_timeout_s=150)
    await engine.start()
    try:
        await engine.add_model(replace(make_assignment("m"), source=str(model), quota_blocks=100_000))
        engine.submit(request(0, prompt_tokens=64, max_tokens=100_000))
        produced = ended = 0
        async for events in engine.events():
            produced += sum(len(event.tokens) for event in events)
            ended += sum(event.finish is not None for event in events)
            if produced >= 20 and ended == 0:  # what a step takes alone is known now
                while prompts:
                    engine.submit(request(prompts.pop(), prompt_tokens=6000, max_tokens=2))
            if ended == 8:
                engine.abort("r0")
            if ended == 9:
                break
    finally:
        await engine.stop()

    learned = read_guard_grid(file, H100)

    assert learned
    assert all(slowdown >= 1.0 for slowdown in learned.values())


async def test_engine__guard_is_another_file__does_not_start_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: []")
    engine = NativeEngine(settings(file), start_timeout_s=150)

    with pytest.raises(EngineStartFailed, match=r"fleet\.yaml: is not a contention guard's grid"):
        await engine.start()
    await engine.stop()
