"""The native probe over the simulated executor, whose times are known exactly."""

import json
from pathlib import Path

import pytest

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.probe import ExecutorProbe
from pdmux_actor.executor.simulated import SimulatedExecutor, VirtualClock
from profiler.devices import laptop_cpu
from profiler.measuring import measure
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.roofline import RooflineLatency
from profiler.sweep import plan_sweep

DEVICE = laptop_cpu(num_cores=4, memory_bytes=1 << 33)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 640,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def executor() -> SimulatedExecutor:
    return SimulatedExecutor(
        device=DEVICE,
        latency=RooflineLatency(DEVICE),
        total_blocks=8192,
        block_bytes=16 * 1024,
        clock=VirtualClock(),
        decode_slowdown=1.25,
    )


@pytest.fixture
def probe(executor: SimulatedExecutor, tmp_path: Path) -> ExecutorProbe:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return ExecutorProbe(executor, model="m", source=str(tmp_path), max_sequences=32)


@pytest.mark.parametrize(
    "launch",
    [
        LaunchShape(sms=2, prompts=2, new_tokens=100, context_tokens=50),
        LaunchShape(sms=3, sequences=7, depth=90),
        LaunchShape(sms=4, prompts=1, new_tokens=64, sequences=5, depth=200),
    ],
    ids=lambda launch: launch.phase,
)
def test_probe__any_launch__takes_its_time_on_its_share(probe: ExecutorProbe, launch: LaunchShape) -> None:
    expected_s = RooflineLatency(DEVICE).mixed_s(probe.spec, launch.chunks, launch.contexts, launch.sms)

    assert probe.time_s(launch) == pytest.approx(expected_s)
    assert probe.time_s(launch) == pytest.approx(expected_s)  # nothing is left of the first


@pytest.mark.parametrize("new_tokens", [8, 1024], ids=["short prefill", "long prefill"])
def test_probe__decode_beside_prefill__is_slowed_down(probe: ExecutorProbe, new_tokens: int) -> None:
    decode = LaunchShape(sms=1, sequences=32, depth=1000)
    prefill = LaunchShape(sms=3, prompts=1, new_tokens=new_tokens)

    assert probe.time_beside_s(decode, prefill) == pytest.approx(1.25 * probe.time_s(decode), rel=0.02)


def test_probe__model_that_does_not_exist__is_refused(executor: SimulatedExecutor, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        ExecutorProbe(executor, model="m", source=str(tmp_path / "nothing"))


def test_measure__whole_sweep__gives_models_and_guard_that_know_the_engine(
    probe: ExecutorProbe, executor: SimulatedExecutor
) -> None:
    planned = plan_sweep(probe.limits)

    rows = [m for m in measure(probe, planned, budget_s=1e6, now=executor.now) if m is not None]

    profile = Profile(
        engine="simulated",
        device=DEVICE,
        num_gpus=1,
        machine={},
        models={"m": ModelProfile(spec=probe.spec, measurements=tuple(rows))},
    )
    assert len(rows) == len(planned)
    assert max(e.mean for e in profile.held_out_errors() if e.latency == "table") < 0.05
    assert max(e.mean for e in profile.held_out_errors() if e.latency == "fitted") < 0.15
    slowdowns = [slowdown for _, slowdown in profile.guard().items()]
    assert slowdowns == pytest.approx([1.25] * len(slowdowns), rel=0.02)
    assert len(slowdowns) >= 10


def test_measure__little_time__still_covers_phases_and_partitions(
    probe: ExecutorProbe, executor: SimulatedExecutor
) -> None:
    planned = plan_sweep(probe.limits)

    rows = [m for m in measure(probe, planned, budget_s=0.5, now=executor.now) if m is not None]

    assert 12 <= len(rows) < len(planned)
    assert {(m.launch.sms, m.launch.phase) for m in rows} == {
        (sms, phase) for sms in (1, 2, 3, 4) for phase in ("prefill", "decode", "mixed")
    }
