"""`muxfleet profile --backend sglang` on the real engine, with a model so small that half a minute says enough."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from pdmux_actor.serving.known_latency import read_known_latency
from profiler.profile_file import read_profile

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240
FLEET = """
models: [{{id: tiny, source: ./tiny, max_model_len: 512}}]
pools:
  - {{name: ours, device: cpu, kv_memory: 32MiB}}
  - name: sglangs
    backend: sglang
    device: cpu
    cores: 4
    kv_memory: 32MiB
    sglang: {{multiplexing: "{multiplexing}"{shares}, args: {{sampling_backend: pytorch}}}}
engine: {{policy: muxwise, max_batch_tokens: 512, max_running_sequences: 8}}
"""


@pytest.fixture
def run(tmp_path, sglang_environment):
    write_random_checkpoint(tmp_path / "tiny", replace(DEMO_SHAPES["demo-llama"], num_layers=2), 1)

    def profile(multiplexing, *options, shares=""):
        (tmp_path / "fleet.yaml").write_text(FLEET.format(multiplexing=multiplexing, shares=shares))
        command = [sys.executable, "-m", "muxfleet.command_line", "profile", str(tmp_path / "fleet.yaml"), *options]
        return subprocess.run(
            command, env=sglang_environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    return profile


def test_profile__sglangs_partitions__every_share_of_either_lane_is_measured_and_fitted(run, tmp_path):
    out, figures = tmp_path / "p.parquet", tmp_path / "p.json"

    done = run(
        "on",
        "--backend",
        "sglang",
        "--budget",
        "20",
        "--out",
        str(out),
        "--json",
        str(figures),
        shares=", decode_sms: [1, 3]",
    )

    assert done.returncode == 0, done.stdout + done.stderr
    profile = read_profile(out)
    rows = profile.models["tiny"].measurements
    alone = [m for m in rows if m.beside is None]
    assert profile.engine == "sglang"
    assert {m.launch.sms for m in alone if m.launch.phase == "prefill"} == {1, 3, 4}
    assert {m.launch.sms for m in alone if m.launch.phase == "decode"} == {1, 3, 4}
    assert {m.launch.phase for m in alone} == {"prefill", "decode"}
    pairs = {(m.beside.sms, m.launch.sms) for m in rows if m.beside is not None}
    assert pairs  # a slow machine does not get to all of them
    assert pairs <= {(3, 1), (1, 3)}
    assert {e["latency"] for e in json.loads(figures.read_text())["errors"]} == {"roofline", "fitted", "table"}
    known, spec = read_known_latency(str(out)), profile.models["tiny"].spec
    for sms in (1, 2, 3, 4):
        assert 0 < known.latency.decode_s(spec, [64] * 4, sms) < 1
    whole = [m for m in alone if m.launch.sms == 4 and m.launch.phase == "prefill"]
    longest, shortest = max(whole, key=lambda m: m.launch.new_tokens), min(whole, key=lambda m: m.launch.new_tokens)
    assert longest.seconds > 2 * shortest.seconds, "the launches do not do what was asked of them"


def test_profile__multiplexing_off__whole_device_and_a_second_go_adds_to_the_first(run, tmp_path):
    out = tmp_path / "p.parquet"

    assert run("off", "--pool", "sglangs", "--budget", "2", "--out", str(out)).returncode == 0
    first = read_profile(out).models["tiny"].measurements
    done = run("off", "--pool", "sglangs", "--budget", "4", "--out", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_profile(out).models["tiny"].measurements
    assert rows[: len(first)] == first
    assert len(rows) > len(first) > 5
    assert {m.launch.sms for m in rows} == {4}


def test_profile__model_that_does_not_load__one_error(run, tmp_path):
    (tmp_path / "tiny" / "model.safetensors").unlink()

    done = run("on", "--backend", "sglang", "--out", str(tmp_path / "p.parquet"))

    assert done.returncode == 1
    assert "tiny" in done.stderr
    assert "Traceback" not in done.stderr.splitlines()[-1]
    assert not (tmp_path / "p.parquet").exists()
