"""Two adapters and their base, from the fleet file through the gateway to PEFT's tokens."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fleet_files import free_port
from fleet_process import FleetProcess, running_fleet
from lora_adapters import ALL_MODULES, AdapterShape, PeftReference, random_adapter
from tokenizers import Tokenizer

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SIZES = {"num_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
PROMPT = list(range(30, 90))
NUM_TOKENS = 12
BASES = {"tiny": None, "sql": "tiny", "legal": "tiny"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapted")
    base = folder / "base"
    write_random_checkpoint(base, CheckpointShape(model_type="llama", **SIZES), seed=2)
    sql = random_adapter(base, folder / "sql", AdapterShape(4, ("q_proj", "v_proj")), seed=1)
    legal = random_adapter(base, folder / "legal", AdapterShape(8, ALL_MODULES), seed=2)
    return {"tiny": base, "sql": sql, "legal": legal}


@pytest.fixture(scope="module")
def fleet(checkpoints: dict[str, Path]) -> Iterator[FleetProcess]:
    slo = {"ttft_s": 10.0, "tbt_s": 2.0}
    models = [
        {"id": "tiny", "source": "./base", "dtype": "float32", "slo": slo},
        {"id": "sql", "base": "tiny", "adapter": "./sql", "slo": slo},
        # nobody has asked for it: it is loaded when somebody does
        {"id": "legal", "base": "tiny", "adapter": "./legal", "slo": slo, "replicas": {"min": 0}},
    ]
    file = checkpoints["tiny"].parent / "fleet.json"
    gateway = {"port": free_port(), "proxy": "python", "hold_s": 180}
    pools = [{"name": "laptop", "device": "cpu", "kv_memory": "64MiB"}]
    file.write_text(json.dumps({"name": "adapted", "models": models, "pools": pools, "gateway": gateway}))
    with running_fleet(file) as process:
        yield process


def said(fleet: FleetProcess, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=200.0, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_models__adapters__are_listed_with_their_base(fleet: FleetProcess) -> None:
    models = httpx.get(f"{fleet.url}/v1/models", timeout=30.0, trust_env=False).json()["data"]

    assert {m["id"]: (m["root"], m["parent"]) for m in models} == {
        "tiny": ("tiny", None),
        "sql": ("tiny", "tiny"),
        "legal": ("tiny", "tiny"),
    }


def test_completions__base_and_adapters_at_once__say_what_peft_says(
    fleet: FleetProcess, checkpoints: dict[str, Path]
) -> None:
    reference = PeftReference(checkpoints["tiny"], {name: checkpoints[name] for name in ("sql", "legal")})
    models = ["tiny", "sql", "legal", "sql", "tiny", "legal"]

    with ThreadPoolExecutor(len(models)) as threads:
        answers = list(threads.map(lambda model: said(fleet, model), models))

    tokenizer = Tokenizer.from_file(str(checkpoints["tiny"] / "tokenizer.json"))
    expected = {m: tokenizer.decode(reference.tokens(BASES[m] and m, PROMPT, NUM_TOKENS)) for m in BASES}
    assert len(set(expected.values())) == 3
    assert [expected[model] for model in models] == answers


def test_metrics__adapters__are_counted_by_their_names(fleet: FleetProcess) -> None:
    text = httpx.get(f"{fleet.url}/metrics", timeout=30.0, trust_env=False).text

    for model in BASES:
        assert f'model="{model}"' in text
