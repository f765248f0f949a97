"""An engine that starts from a profile."""

import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.errors import EngineStartFailed
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.known_latency import read_known_latency
from profiler.gpus.h100 import DEVICE as H100
from profiler.measurement import Measurement
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import write_profile
from profiler.specs import ModelSpec

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    vocab_size=640,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    dtype="float32",
)
DEVICE = replace(H100, name="measured", memory_bytes=12345)
SECONDS = 0.25  # whatever is launched


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    shapes = [LaunchShape(sms=132, prompts=1, new_tokens=n) for n in (8, 64, 512)]
    shapes += [LaunchShape(sms=132, sequences=n, depth=100) for n in (1, 8, 64)]
    rows = [
        Measurement(launch=s, seconds=SECONDS, high_s=SECONDS, repeats=3, is_held_out=n)
        for s in shapes
        for n in (False, True)
    ]
    model = ModelProfile(spec=SPEC, measurements=tuple(rows))
    file = tmp_path / "p.parquet"
    write_profile(Profile(engine="native", device=DEVICE, num_gpus=1, machine={}, models={"m": model}), file)
    return file


def settings(file: Path) -> EngineSettings:
    return EngineSettings(kind="simulated", kv_pool_bytes=1 << 24, profile=str(file))


async def test_simulated_engine__with_a_profile__is_the_device_that_was_measured(profile: Path) -> None:
    engine = NativeEngine(settings(profile), start_timeout_s=150)
    try:
        capacity = await engine.start()
    finally:
        await engine.stop()

    assert capacity.device == "measured"
    assert capacity.memory_bytes == 12345


async def test_engine__with_a_profile_that_is_missing__does_not_start_and_says_why(tmp_path: Path) -> None:
    engine = NativeEngine(settings(tmp_path / "gone.parquet"), start_timeout_s=150)

    with pytest.raises(EngineStartFailed, match=r"gone\.parquet: no such file; measure one"):
        await engine.start()
    await engine.stop()


def test_known_latency__of_a_profile__answers_what_was_measured(profile: Path) -> None:
    known = read_known_latency(str(profile))

    assert known.latency.decode_s(SPEC, [100] * 8, 132) == pytest.approx(SECONDS, rel=0.01)


def test_known_latency__of_another_number_of_cores__warns(profile: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = read_known_latency(str(profile))

    with caplog.at_level(logging.WARNING):
        known.check_device(replace(DEVICE, num_sms=132))
        assert not caplog.records
        known.check_device(replace(DEVICE, num_sms=2))

    (warned,) = caplog.records
    assert (warned.measured_on, warned.has) == (132, 2)  # type: ignore[attr-defined]  # a log record's extra


def test_engine_settings__with_a_profile__travel(profile: Path) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(settings(profile)), type=EngineSettings)

    assert sent == settings(profile)
