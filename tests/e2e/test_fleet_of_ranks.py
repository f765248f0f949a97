"""Units of two ranks on this machine, from the fleet file to the tokens, and through the death of a rank."""

import json
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

from deploy.cli import main
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

MODEL = "tiny"
SHAPE = CheckpointShape(
    model_type="qwen2", num_layers=3, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16
)
PROMPTS = tuple(list(range(30 + n, 60 + 7 * n)) for n in range(6))
_CLIENTS = 8
_RECOVER_S = 150.0


def fleet_file(folder: Path, **pool: object) -> Path:
    slo = {"ttft_s": 20.0, "tbt_s": 5.0}
    fleet = {
        "name": "ranks",
        "models": [{"id": MODEL, "source": "./tiny", "dtype": "float32", "slo": slo, "replicas": {"min": 1, "max": 2}}],
        "pools": [{"name": "ranks", "device": "cpu", "kv_memory": "32MiB", **pool}],
        "gateway": {"port": free_port(), "proxy": "python", "hold_s": 180},
    }
    file = folder / f"fleet-{len(list(folder.glob('*.json')))}.json"
    file.write_text(json.dumps(fleet))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_random_checkpoint(folder / MODEL, SHAPE, seed=4)
    return folder


@pytest.fixture(scope="module")
def said_by_one(folder: Path) -> dict[int, str]:
    """What transformers, alone, answers: so does a unit of one rank."""
    return greedy_texts(folder / MODEL, PROMPTS, 48)


@pytest.fixture(scope="module")
def fleet(folder: Path, said_by_one: dict[int, str]) -> Iterator[FleetProcess]:
    """Two units of two ranks; both have the model."""
    with running_fleet(fleet_file(folder, mesh_gpus=2, cores=2, nodes={"min": 2})) as process:
        yield process


def completed(url: str, prompt: int, max_tokens: int) -> str:
    body = {"model": MODEL, "prompt": PROMPTS[prompt], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=240.0, trust_env=False)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    return str(choice["text"])


def streamed(url: str, prompt: int) -> tuple[str, Counter[str]]:
    return streamed_completion(url, MODEL, PROMPTS[prompt], 48)


def ranks_of(fleet: FleetProcess) -> list[psutil.Process]:
    """The processes beside the leading ones."""
    return [p for p in fleet.processes() if "pdmux_actor.serving.rank_process" in command_line(p)]


def units_of(fleet: FleetProcess) -> list[dict[str, object]]:
    state = httpx.get(f"{fleet.url}/fleet", timeout=30.0, trust_env=False).json()
    return [unit["report"] for unit in state["units"] if unit["silent_s"] < 1.5]


def until_ready(fleet: FleetProcess, num_units: int) -> set[str]:
    until_s = time.monotonic() + _RECOVER_S
    while True:
        units = units_of(fleet)
        ready = [u for u in units if [m["phase"] for m in u["models"]] == ["ready"]]
        if len(ready) == len(units) == num_units:
            return {str(u["unit_id"]) for u in ready}
        assert time.monotonic() < until_s, units
        time.sleep(0.2)


def test_completions__unit_of_two_ranks__says_what_one_rank_says(
    fleet: FleetProcess, said_by_one: dict[int, str]
) -> None:
    with ThreadPoolExecutor(_CLIENTS) as threads:
        asked = [n % len(PROMPTS) for n in range(2 * len(PROMPTS))]
        answers = list(threads.map(lambda n: completed(fleet.url, n, 48), asked))

    assert answers == [said_by_one[n] for n in asked]
    assert len(set(said_by_one.values())) > 1


def test_status__units_of_two_ranks__shows_them(
    fleet: FleetProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    until_ready(fleet, 2)
    with pytest.raises(SystemExit) as exited:
        main(["status", fleet.url, "--json", str(tmp_path / "status.json")])

    assert exited.value.code == 0
    units = json.loads((tmp_path / "status.json").read_text())["units"]
    assert [unit["num_gpus"] for unit in units] == [2, 2]
    assert capsys.readouterr().out.count(" x2") == 2
    assert len(ranks_of(fleet)) == 2  # each beside the one that leads it


def test_rank_killed__under_load__every_request_is_answered_once_with_its_tokens(
    fleet: FleetProcess, said_by_one: dict[int, str]
) -> None:
    before = until_ready(fleet, 2)
    with keeps_asking(lambda n: streamed(fleet.url, n), len(PROMPTS), _CLIENTS) as answers:
        time.sleep(2.0)
        ranks_of(fleet)[0].kill()
        time.sleep(3.0)
        after = until_ready(fleet, 2)

    assert len(before & after) == 1, "the unit of the rank went, another came"
    assert [ends for _, (_, ends) in answers if ends != Counter(length=1)] == []
    assert [text for n, (text, _) in answers if text != said_by_one[n]] == []
    assert len(answers) > _CLIENTS
