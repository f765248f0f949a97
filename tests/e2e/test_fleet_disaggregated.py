"""Prefill and decode on units of their own, from the fleet file to the tokens, and through the death of an engine."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from clients import keeps_asking, streamed_completion
from fleet_files import free_port
from fleet_process import FleetProcess, command_line, running_fleet
from transformers_greedy import greedy_texts

from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

MODEL = "tiny"
SHAPE = CheckpointShape(
    model_type="llama", num_layers=3, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
)
PROMPTS = tuple(list(range(30 + n, 100 + 40 * n)) for n in range(5))
_CLIENTS = 4
_TOKENS = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disaggregated")
    write_random_checkpoint(folder / MODEL, SHAPE, seed=4)
    return folder


@pytest.fixture(scope="module")
def said_by_one(folder: Path) -> dict[int, str]:
    """What transformers, alone, answers: so does a unit that does both parts."""
    return greedy_texts(folder / MODEL, PROMPTS, _TOKENS)


@pytest.fixture(scope="module")
def fleet(folder: Path, said_by_one: dict[int, str]) -> Iterator[FleetProcess]:
    slo = {"ttft_s": 20.0, "tbt_s": 5.0}
    pool = {"device": "cpu", "cores": 1, "kv_memory": "64MiB"}
    written = {
        "name": "disaggregated",
        "models": [{"id": MODEL, "source": "./tiny", "dtype": "float32", "slo": slo}],
        "pools": [{"name": "prompts", "role": "prefill", **pool}, {"name": "answers", "role": "decode", **pool}],
        "engine": {"block_bytes": 4096},
        "gateway": {"port": free_port(), "proxy": "python", "replicas": 1, "hold_s": 180},
    }
    file = folder / "fleet.json"
    file.write_text(json.dumps(written))
    with running_fleet(file) as process:
        yield process


def streamed(url: str, prompt: int) -> tuple[str, Counter[str]]:
    return streamed_completion(url, MODEL, PROMPTS[prompt], _TOKENS)


def transfers(fleet: FleetProcess) -> dict[str, float]:
    text = httpx.get(f"{fleet.url}/metrics", timeout=30.0, trust_env=False).text
    found = re.findall(r"^muxfleet_kv_(transfer\w+)\{[^}]*\} (\S+)$", text, flags=re.MULTILINE)
    return {name: float(value) for name, value in found if not name.endswith("bucket")}


def until_both_serve(fleet: FleetProcess) -> None:
    until_s = time.monotonic() + 180.0
    while True:
        state = httpx.get(f"{fleet.url}/fleet", timeout=30.0, trust_env=False).json()
        reports = [unit["report"] for unit in state["units"] if unit["silent_s"] < 1.5]
        ready = {r["pool"] for r in reports if [m["phase"] for m in r["models"]] == ["ready"]}
        if ready == {"prompts", "answers"} and len(reports) == 2:
            return
        assert time.monotonic() < until_s, reports
        time.sleep(0.2)


def until_the_gateway_knows(fleet: FleetProcess) -> dict[str, float]:
    """`until_both_serve` is the control loop's word, and a gateway hears it a moment later. The transfers so far."""
    until_s, turn = time.monotonic() + 30.0, 0
    while not (moved := transfers(fleet)).get("transfers_total"):
        assert time.monotonic() < until_s, moved
        streamed_completion(fleet.url, MODEL, range(150 + turn, 240 + turn), 2)
        turn += 1
    return moved


def engine_of(fleet: FleetProcess, pool: str) -> psutil.Process:
    """The engine under the Serve replica of a pool."""
    (found,) = [
        p
        for p in fleet.processes()
        if "pdmux_actor.serving.process" in command_line(p) and f"units-{pool}" in command_line(p.parent() or p)
    ]
    return found


def test_fleet__a_pool_for_prompts_and_one_for_answers__moves_kv_and_says_the_same(
    fleet: FleetProcess, said_by_one: dict[int, str]
) -> None:
    until_both_serve(fleet)
    before = until_the_gateway_knows(fleet)
    with ThreadPoolExecutor(_CLIENTS) as threads:
        answers = list(threads.map(lambda n: streamed(fleet.url, n), range(len(PROMPTS))))

    assert [text for text, _ in answers] == list(said_by_one.values())
    assert all(ends == Counter(length=1) for _, ends in answers)
    moved = {name: value - before[name] for name, value in transfers(fleet).items()}
    assert moved["transfers_total"] == len(PROMPTS)
    assert moved["transfers_short_total"] == 0
    assert moved["transfer_bytes_total"] > 0
    assert moved["transfer_seconds_count"] == len(PROMPTS)


def test_decode_engine__is_killed_under_load__every_request_is_answered_once_with_its_tokens(
    fleet: FleetProcess, said_by_one: dict[int, str]
) -> None:
    until_both_serve(fleet)
    with keeps_asking(lambda n: streamed(fleet.url, n), len(PROMPTS), _CLIENTS) as answers:
        time.sleep(2.0)
        engine_of(fleet, "answers").kill()
        time.sleep(3.0)
        until_both_serve(fleet)
        before = transfers(fleet)["transfers_total"]
        time.sleep(2.0)

    assert [ends for _, (_, ends) in answers if ends != Counter(length=1)] == []
    assert [text for n, (text, _) in answers if text != said_by_one[n]] == []
    assert len(answers) > _CLIENTS
    assert transfers(fleet)["transfers_total"] > before, "the unit that took its place is handed to"
