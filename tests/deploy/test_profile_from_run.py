"""`muxfleet profile --from-run`: what a run of an engine elsewhere says of it, and what is planned by it."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scripted_server import ScriptedServer

from deploy.cli import main
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.planning.fleet_planning import plan_fleet
from deploy.profiling.endpoint_profile import FittedRun, fit_endpoint, served_model
from deploy.simulation.deployments import Deployment, deploy_fleet
from deploy.simulation.runs import RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from profiler.gpus.h200 import DEVICE as H200
from profiler.profile import Profile
from profiler.profile_file import read_profile, write_profile
from profiler.served_steps import Rung
from router.limits import GatewayLimits
from traces.outcome import RequestOutcome

EXAMPLES = Path(__file__).parents[2] / "examples"
POOL = "{name: h, device: simulated, gpu_type: H200, gpus_per_node: 1, mesh_gpus: 1, kv_memory: 80GiB"
FLEET = f"""
models:
  - id: m
    source: ./models/llama-3.1-8b
    max_model_len: 8192
    slo: {{ttft_s: 2.0, tbt_s: 0.1}}
    demand: {{rate_per_s: 8.0, prompt_tokens: 800, output_tokens: 100}}
pools:
  - {POOL}}}
"""
SLOWER = replace(
    H200,
    peak_flops_per_s=0.6 * H200.peak_flops_per_s,
    memory_bandwidth_bytes_per_s=0.8 * H200.memory_bandwidth_bytes_per_s,
)
HOST_S = 3.5e-3
ANY = Deployment(name="any", policy="chunked_prefill")


def fleet(profile: Path | None = None) -> FleetFile:
    text = FLEET if profile is None else FLEET.replace(POOL, f"{POOL}, profile: {profile}")
    return parse_fleet_file(text, name="f.yaml", base=EXAMPLES)


@pytest.fixture
def true_file(tmp_path: Path) -> Path:
    """An engine whose rates and host time are known, as a profile without launches."""
    path = tmp_path / "true.parquet"
    known = Profile(engine="e", device=SLOWER, num_gpus=1, machine={}, models={}, host_s=HOST_S)
    write_profile(known, path)
    return path


@dataclass
class SimulatedEndpoint:
    """Answers a rung in virtual time."""

    fleet: FleetFile
    policy: str
    now_s: float = 0.0

    def __call__(self, rung: Rung) -> Sequence[RequestOutcome]:
        records, outcomes = rung.records("m"), list[RequestOutcome]()
        stream = RequestStream(
            name="rung", records=lambda: iter(records), block_tokens=None, count=len(records), span_s=0.0
        )
        deployed = deploy_fleet(self.fleet, replace(ANY, policy=self.policy))
        options = RunOptions(limits=GatewayLimits(), gateways=1)
        self.now_s += run_fleet(deployed, stream, options, on_outcome=outcomes.append).duration_s
        return outcomes


def fitted(known: Path, policy: str = "chunked_prefill", budget_s: float = 15.0) -> FittedRun:
    endpoint = SimulatedEndpoint(fleet(known), policy)
    return fit_endpoint(served_model(fleet(), None, None), endpoint, budget_s=budget_s, now=lambda: endpoint.now_s)


@pytest.mark.parametrize(
    ("policy", "rates_within", "host_within"),
    [("chunked_prefill", 0.01, 0.01), ("muxwise", 0.02, 0.03), ("mux", 0.16, 0.25)],
)
def test_fit__endpoint_of_known_rates__finds_them(
    true_file: Path, policy: str, rates_within: float, host_within: float
) -> None:
    """`mux` makes several tokens a launch: how many in each is not seen, so host and bandwidth are told apart worse."""
    found = fitted(true_file, policy).after

    assert found.device.peak_flops_per_s == pytest.approx(SLOWER.peak_flops_per_s, rel=rates_within)
    assert found.device.memory_bandwidth_bytes_per_s == pytest.approx(
        SLOWER.memory_bandwidth_bytes_per_s, rel=rates_within
    )
    assert found.host_s == pytest.approx(HOST_S, rel=host_within)
    assert found.client_s < 1e-3


def test_fit__endpoint_of_known_rates__predicts_what_it_was_not_fitted_to(true_file: Path) -> None:
    before, after = fitted(true_file).errors()

    assert before > 0.3
    assert after < 0.01


def test_fit__noisy_clock__is_near_all_the_same(true_file: Path) -> None:
    """Each delivery is up to 2 ms late, a first token 20 ms."""
    endpoint = SimulatedEndpoint(fleet(true_file), "chunked_prefill")

    def late(rung: Rung) -> Sequence[RequestOutcome]:
        outcomes = endpoint(rung)
        return [
            replace(
                o,
                ttft_s=(o.ttft_s or 0.0) + 0.02,
                gaps_s=tuple(g + 2e-3 * (i % 2) - 1e-3 for i, g in enumerate(o.gaps_s)),
            )
            for o in outcomes
        ]

    found = fit_endpoint(served_model(fleet(), None, None), late, budget_s=15.0, now=lambda: endpoint.now_s)

    assert found.after.client_s == pytest.approx(0.02, abs=2e-3)
    assert found.after.device.peak_flops_per_s == pytest.approx(SLOWER.peak_flops_per_s, rel=0.05)
    assert found.errors()[1] < 0.03


def test_profile__of_a_run__plan_and_simulation_are_those_of_the_true_engine(true_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted.parquet"
    write_profile(fitted(true_file).profile("http://engine"), out)

    headrooms = [plan_fleet(fleet(file)).estimate().units[0].headroom for file in (None, true_file, out)]
    assert headrooms[2] == pytest.approx(headrooms[1], rel=0.03)
    assert headrooms[0] > 1.4 * headrooms[1]
    rung = Rung(clients=20, prompt_tokens=700, output_tokens=90)
    runs = [SimulatedEndpoint(fleet(file), "mux") for file in (None, true_file, out)]
    seconds = [max(o.end_s for o in run(rung)) for run in runs]
    assert seconds[2] == pytest.approx(seconds[1], rel=0.03)
    assert seconds[0] < 0.8 * seconds[1]


def test_fit__endpoint_that_answers_hardly_any__says_so(true_file: Path) -> None:
    with pytest.raises(OptionNotUsable, match="give a larger --budget"):
        fitted(true_file, budget_s=0.2)


@pytest.mark.parametrize(("budget_s", "once"), [(8.0, True), (30.0, False)])
def test_fit__budget_of_one_round_or_several__says_whether_launches_were_seen_once(
    true_file: Path, budget_s: float, once: bool
) -> None:
    assert fitted(true_file, budget_s=budget_s).is_seen_once is once


class QuickServer(ScriptedServer):
    async def answer_m(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._begin(writer)
        await asyncio.sleep(0.002 + 1e-5 * len(body["prompt"]))
        for i in range(body["max_tokens"]):
            await asyncio.sleep(0.001)
            self._send(writer, text="t", finish="length" if i == body["max_tokens"] - 1 else None)
            await writer.drain()
        self._usage(writer, body["max_tokens"])
        self._end(writer)


@pytest.fixture
def server() -> Iterator[QuickServer]:
    """In a thread of its own: the command has its own loop."""
    quick, started = QuickServer(), threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with quick.running():
            stop.append((asyncio.get_running_loop(), asyncio.Event()))
            started.set()
            await stop[0][1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    yield quick
    stop[0][0].call_soon_threadsafe(stop[0][1].set)
    thread.join(20)


@pytest.fixture
def fleet_file(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    text = FLEET.replace("./models", str(EXAMPLES / "models"))
    file.write_text(text + "engine: {max_running_sequences: 2}\n")
    return file


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as exited:
        main([str(a) for a in arguments])
    return int(exited.value.code or 0)


def test_command__against_a_server__writes_a_profile_that_plans(
    server: QuickServer, fleet_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = tmp_path / "run.parquet", tmp_path / "plan.json"
    asked = ("profile", fleet_file, "--from-run", server.url, "--budget", "3", "--out", out, "--api-key", "k")
    assert run(*asked) == 0

    assert "host, ms a step" in capsys.readouterr().out
    assert {"authorization: Bearer k"} <= set(server.headers[0].split("\r\n"))
    profile = read_profile(out)
    assert profile.host_s is not None
    assert len(profile.models["m"].measurements) >= 6
    fleet_file.write_text(fleet_file.read_text().replace(POOL, f"{POOL}, profile: {out}"))
    assert run("plan", fleet_file, "--json", plan) in (0, 3)
    assert json.loads(plan.read_text())["units"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--from-run", "ftp://nowhere"), "--from-run ftp://nowhere: write a URL such as"),
        (("--from-run", "127.0.0.1:1"), "a first request was not answered"),
        (("--from-run", "http://127.0.0.1:1", "--model", "x"), "the fleet file has m"),
        (("--from-run", "http://127.0.0.1:1", "--pool", "x"), "the fleet file has h"),
        (("--from-run", "http://127.0.0.1:1", "--cores", "2"), "leave them out"),
        (("--model", "m"), "they go with --from-run"),
    ],
)
def test_command__that_cannot_run__says_what_to_give(
    fleet_file: Path, tmp_path: Path, asked: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("profile", fleet_file, "--out", tmp_path / "o.parquet", *asked) != 0

    assert said in " ".join(capsys.readouterr().err.split())
