"""One fleet of three models on this machine, from the command line to the tokens. The tests share it, in this order."""

import asyncio
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from clients import MODELS, chat, client_of, endings, streamed_chat
from fleet_process import FleetProcess, assert_all_on_loopback

from deploy.cli import main
from deploy.local.demo_fleet import recorded_trace
from traces.outcome import Ending

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
DASHBOARDS = Path(__file__).parents[2] / "helm" / "files" / "dashboards"
TOLD_S = 20.0  # units and gateways tell within seconds
# No model was asked for before it was ready, and no API keys are in force.
OF_KEYS = {"muxfleet_key_generations_total", "muxfleet_key_tokens_total", "muxfleet_requests_rate_limited_total"}
WITHOUT_CAUSE_HERE = frozenset({"muxfleet_cold_start_seconds_bucket", *OF_KEYS})
LONG = 400
_RESTART_S = 0.5  # no engine starts faster
_KILLS = 3  # on a busy machine all tokens may have been on their way when the client was seen to have 20


@pytest.fixture(scope="module")
def client(fleet: FleetProcess) -> openai.OpenAI:
    return client_of(fleet.url)


def test_up__terminal__shows_a_line_per_model_and_none_of_rays(fleet: FleetProcess) -> None:
    lines = [line.strip() for line in fleet.lines if line.strip()]

    assert lines[0] == "starting Ray on this machine"
    for model in MODELS:
        assert any(line.endswith(f"{model}: ready") for line in lines)
    assert lines[-2].startswith(f"curl {fleet.url}/v1/chat/completions")
    assert lines[-1] == f"muxfleet chat {fleet.url}"
    assert not [line for line in lines if "ray::" in line or "INFO" in line or "WARNING" in line or "pid=" in line]


def test_sockets__gateway_on_loopback__none_is_reached_from_elsewhere(fleet: FleetProcess) -> None:
    assert_all_on_loopback(fleet)


def test_session_folder__any_fleet__is_its_owners_only(fleet: FleetProcess) -> None:
    assert fleet.session_folder().stat().st_mode & 0o777 == 0o700


CHANGE_IT = """
import sys
from deploy.environment import export_environment, running_fleets_folder
from deploy.errors import FleetChanging
from deploy.local.ray_environment import joining_environment
from deploy.local.running_fleets import running_fleets
(fleet,) = [f for f in running_fleets(running_fleets_folder()) if f.pid == int(sys.argv[1])]
export_environment(joining_environment(auth_token=fleet.auth_token))
from deploy.local.local_ray import joined_ray
with joined_ray(fleet.address, is_verbose=False):
    from deploy.serve import sole_change
    for sole_change._WAIT_S in (0.5, 60.0):
        try:
            with sole_change.sole_change("demo"):
                print("alone", flush=True)
                sys.stdin.readline()
                break
        except FleetChanging as error:
            print(error, flush=True)
"""


def test_change__another_is_being_made__waits_for_it_or_for_the_end_of_its_process(fleet: FleetProcess) -> None:
    def changing() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHANGE_IT, str(fleet.pid)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with changing() as one, changing() as other:
        assert one.stdout is not None
        assert other.stdout is not None
        first, second = (process.stdout.readline() for process in (one, other))
        holder, waits = (one, other) if first == "alone\n" else (other, one)
        holder.kill()
        last = waits.stdout.readline()
        waits.communicate("")

    assert sorted([first, second])[0] == "alone\n"
    assert "nothing was applied: another `muxfleet apply` has been changing the fleet" in first + second
    assert (last, waits.returncode) == ("alone\n", 0)


def test_models__all_three__are_ready_on_one_unit(fleet: FleetProcess, client: openai.OpenAI) -> None:
    assert sorted(m.id for m in client.models.list()) == sorted(MODELS)
    assert fleet.statuses() == dict.fromkeys(MODELS, "ready")
    assert fleet.engine().is_running()


@pytest.mark.parametrize("model", MODELS)
def test_chat__streamed_and_whole__are_the_same_text(client: openai.OpenAI, model: str) -> None:
    whole = chat(client, model, max_tokens=40)

    assert whole
    assert streamed_chat(client, model, max_tokens=40) == whole


def test_metrics__one_scrape__tells_of_both_gateways(fleet: FleetProcess) -> None:
    text = httpx.get(f"{fleet.url}/metrics", timeout=30.0, trust_env=False).text

    assert len(set(re.findall(r'^muxfleet_build_info\{gateway="(\w+)"', text, re.MULTILINE))) == 2
    assert text.count("# TYPE muxfleet_build_info ") == 1


def test_metrics__of_a_fleet_that_serves__have_what_the_dashboards_ask(
    fleet: FleetProcess, client: openai.OpenAI
) -> None:
    """The same names are held against a gateway with a unit that is made up (tests/k8s); here all is real. Some are
    told only while an engine decodes.
    """
    asked = "".join(file.read_text() for file in DASHBOARDS.glob("*.json"))
    used = set(re.findall(r"\bmuxfleet_[a-z0-9_]+", asked))
    missing = used - WITHOUT_CAUSE_HERE
    until_s = time.monotonic() + TOLD_S
    with ThreadPoolExecutor(len(MODELS)) as threads:
        while missing and time.monotonic() < until_s:
            streams = [threads.submit(streamed_chat, client, model, max_tokens=LONG) for model in MODELS]
            while not all(s.done() for s in streams):
                text = httpx.get(f"{fleet.url}/metrics", timeout=30.0, trust_env=False).text
                missing -= set(re.findall(r"^(muxfleet_[a-z0-9_]+)", text, re.MULTILINE))
                time.sleep(0.2)

    assert used >= WITHOUT_CAUSE_HERE
    assert not missing, sorted(missing)


def test_chat__many_at_once__are_the_same_as_alone(client: openai.OpenAI) -> None:
    alone = {m: chat(client, m, max_tokens=24) for m in MODELS}

    with ThreadPoolExecutor(24) as threads:
        together = list(threads.map(lambda i: (MODELS[i % 3], chat(client, MODELS[i % 3], max_tokens=24)), range(24)))

    assert all(text == alone[model] for model, text in together)


def test_status__running_fleet__lists_models_and_unit(
    fleet: FleetProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["status", fleet.url, "--json", str(tmp_path / "status.json")])

    assert exited.value.code == 0
    found = json.loads((tmp_path / "status.json").read_text())
    assert {m["id"]: m["status"] for m in found["models"]} == dict.fromkeys(MODELS, "ready")
    (unit,) = found["units"]
    assert {m["model"] for m in unit["models"]} == set(MODELS)
    assert all(m["quota_blocks"] > 0 for m in unit["models"])


def test_logs__running_fleet__replicas_write_json_lines_where_the_runbook_looks(
    fleet: FleetProcess, client: openai.OpenAI
) -> None:
    chat(client, next(iter(MODELS)), max_tokens=2)

    files = fleet.session_folder().glob("ray/session_2*/logs/worker-*.out")
    texts = [line for file in files for line in file.read_text().splitlines() if line.startswith('{"time"')]
    lines = [json.loads(text) for text in texts]
    events = [line for line in lines if line["message"] == "fleet event"]
    assert {line["deployment"] for line in events} == {"Controller"}
    assert {"plan", "move", "lease", "model_ready"} <= {line["kind"] for line in events}
    assert {line["model"] for line in events if line["kind"] == "model_ready"} == set(MODELS)
    (joined,) = [line for line in events if line["kind"] == "unit_joined"]
    connected = [line for line in lines if line["message"] == "connected to unit"]
    assert {(line["deployment"], line["unit"]) for line in connected} == {("Gateway", joined["unit"])}


def test_top__running_fleet__shows_what_clients_saw(
    fleet: FleetProcess, client: openai.OpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in MODELS:
        chat(client, model, max_tokens=8)

    with pytest.raises(SystemExit) as exited:
        main(["top", fleet.url, "--every", "0.2", "--count", "2"])

    assert exited.value.code == 0
    seen = capsys.readouterr().out
    head = next(line for line in seen.splitlines() if "TTFT p50" in line)
    assert head.split("  ")[0] == "model"
    assert all(re.search(rf"^{model} +\d+ +\d+ ms +\d+ ms", seen, re.MULTILINE) for model in MODELS)


def test_trace_decisions__running_fleet__draws_every_model(fleet: FleetProcess, tmp_path: Path) -> None:
    for model in MODELS:
        chat(client_of(fleet.url), model, max_tokens=8)
    chrome, plain = tmp_path / "chrome.json", tmp_path / "plain.json"

    with pytest.raises(SystemExit) as exited:
        main(["trace-decisions", fleet.url, "--chrome", str(chrome), "--json", str(plain)])

    assert exited.value.code == 0
    slices = [event for event in json.loads(chrome.read_text()) if event["ph"] == "X" and event["args"]]
    assert {event["args"]["model"] for event in slices} == set(MODELS)
    assert all(event["dur"] > 0 for event in slices)
    (unit,) = json.loads(plain.read_text())["units"].values()
    assert 0 < unit["lanes"]["decode"]["busy"] <= 1


def test_bench__generated_jsonl__writes_figures_and_rows(fleet: FleetProcess, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 30, "output_length": 4, "hash_ids": [0]} for i in range(12)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    figures, table = tmp_path / "bench.json", tmp_path / "bench.parquet"

    with pytest.raises(SystemExit) as exited:
        main(["bench", fleet.url, "--trace", str(trace), "--json", str(figures), "--out", str(table)])

    assert exited.value.code == 0
    total = json.loads(figures.read_text())["total"]
    assert (total["requests"], total["finished"], total["lost"]) == (12, 12, 0)
    assert table.stat().st_size > 0


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.exists(), reason="../shared with the public traces is not here")
@pytest.mark.parametrize("name", ["azure_2023_conv", "mooncake_conversation"])
def test_replay__first_200_requests_of_a_public_trace__are_all_answered(fleet: FleetProcess, name: str) -> None:
    workload = recorded_trace(TRACES / f"{name}.parquet", requests=200, seed=0)

    counts = asyncio.run(endings(workload, fleet.url))

    assert counts[Ending.FINISHED] == 200, f"{counts}, scaled: {workload.scale}"


def test_controller_killed__while_streaming__nothing_is_lost_or_loaded_again(
    fleet: FleetProcess, client: openai.OpenAI
) -> None:
    expected = chat(client, MODELS[0], max_tokens=LONG)
    engine, controller = fleet.engine(), fleet.controller()

    def kill_once(chunks: int) -> None:
        if chunks == 5:
            controller.kill()

    text = streamed_chat(client, MODELS[0], max_tokens=LONG, on_chunk=kill_once)
    fleet.wait_until_replaced(controller, fleet.controller)

    assert text == expected
    assert fleet.engine().pid == engine.pid
    assert chat(client, MODELS[2], max_tokens=8)


@pytest.mark.parametrize("victim", ["engine", "actor"])
def test_unit_killed__while_streaming__stream_goes_on_with_the_same_tokens(
    fleet: FleetProcess, client: openai.OpenAI, victim: str
) -> None:
    expected = chat(client, MODELS[1], max_tokens=LONG)
    longest_gap_s = 0.0
    for _ in range(_KILLS):
        engine = fleet.engine()
        target = engine if victim == "engine" else fleet.actor()
        arrivals_s: list[float] = []

        def kill_once(chunks: int, target: psutil.Process = target, arrivals_s: list[float] = arrivals_s) -> None:
            arrivals_s.append(time.monotonic())
            if chunks == 20:
                target.kill()

        text = streamed_chat(client, MODELS[1], max_tokens=LONG, on_chunk=kill_once)
        fleet.wait_until_replaced(engine, fleet.engine)
        assert text == expected
        assert not engine.is_running()
        longest_gap_s = max(b - a for a, b in pairwise(arrivals_s))
        if longest_gap_s > _RESTART_S:
            break

    assert longest_gap_s > _RESTART_S, f"the stream ended before the kill, {_KILLS} times"
    for model in MODELS:
        assert chat(client, model, max_tokens=8)


def test_up__after_all_that__terminal_is_still_quiet(fleet: FleetProcess) -> None:
    after_start = fleet.output.partition("serving at ")[2].splitlines()

    assert len([line for line in after_start if line.strip()]) == 3, "the URL and the lines to ask with"
