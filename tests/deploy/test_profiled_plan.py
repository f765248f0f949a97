"""A pool's profile is what its units are planned by."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.fleet_file.settings import parse_fleet_file
from deploy.planning.fleet_planning import plan_fleet
from profiler.gpus.h100 import DEVICE as H100
from profiler.measurement import Measurement
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import write_profile
from profiler.specs import ModelSpec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 640,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
FLEET = """
models:
  - {id: m, source: ./m, slo: {ttft_s: 5, tbt_s: 1}, demand: {rate_per_s: 200, prompt_tokens: 100, output_tokens: 8}}
pools:
  - {name: p, device: simulated, profile: PROFILE, kv_memory: 64MiB, device_memory: 8GiB}
"""


@pytest.mark.parametrize(("seconds", "bears_it"), [(0.25, False), (0.0005, True)])
def test_plan__pool_with_a_profile__is_made_by_what_was_measured(
    tmp_path: Path, seconds: float, bears_it: bool
) -> None:
    """Of the same device and the same model, only the measured seconds differ."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(CONFIG))
    shapes = [LaunchShape(sms=132, prompts=1, new_tokens=n) for n in (8, 64, 512)]
    shapes += [LaunchShape(sms=132, sequences=n, depth=100) for n in (1, 8, 64)]
    measured = tuple(
        Measurement(launch=s, seconds=seconds, high_s=seconds, repeats=3, is_held_out=held)
        for s in shapes
        for held in (False, True)
    )
    model = ModelProfile(spec=ModelSpec.from_config(CONFIG), measurements=measured)
    profile = Profile(
        engine="native", device=replace(H100, name="measured"), num_gpus=1, machine={}, models={"m": model}
    )
    write_profile(profile, tmp_path / "p.parquet")
    text = FLEET.replace("PROFILE", str(tmp_path / "p.parquet"))

    planned = plan_fleet(parse_fleet_file(text, name="f.yaml", base=tmp_path))

    assert (planned.estimate().served_share > 0.99) is bears_it
