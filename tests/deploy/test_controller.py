import asyncio
import json
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet_model import FakeUnit

from deploy.control.planner import PlannerInPlace
from deploy.serve import controller as controller_module
from deploy.serve import model_shapes
from deploy.serve.controller import Controller
from pdmux_actor.lease import ModelPhase
from placement.estimation.problem_arrays import Estimator
from placement.solvers.registry import SOLVERS
from router.access.rate_limits import KeyUsage
from router.admission.demand_report import DemandReport
from router.telemetry.fleet_event import EventKind, FleetEvent
from router.view import FleetNews, read_news

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


def checkpoint(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def user_config(*sources: str, **changes: object) -> dict[str, Any]:
    models = [{"id": f"m{i}", "source": source} for i, source in enumerate(sources)]
    base = {"models": models, "policy": "mux", "expected_units": {"p": 1}}
    return json.loads(json.dumps({**base, **changes}))


def in_place(solver: str, _profiles: Mapping[str, str]) -> PlannerInPlace:
    return PlannerInPlace(SOLVERS[solver].make(Estimator(), lambda: False), Estimator())


@pytest.fixture(autouse=True)
def state_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control loop goes on with what the one before has kept, however little it lived."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def test_reconfigure__local_checkpoints__are_leased_with_the_first_heartbeat(tmp_path: Path) -> None:
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")))

    lease = await controller.heartbeat(FakeUnit(unit_id="u").report())

    assert [a.model for a in lease.models] == ["m0", "m1"]
    assert lease.stream_token == "t"


async def test_reconfigure__models_and_targets_change__next_lease_has_them(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a")
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(source))
    unit = FakeUnit(unit_id="u")
    first = await controller.heartbeat(unit.report())

    changed = user_config(source, source)
    changed["models"][0]["slo"] = {"ttft_s": 9.0, "tbt_s": 1.0}
    await controller.reconfigure(changed)
    second = await controller.heartbeat(unit.report())

    assert second.version > first.version
    assert [(a.model, a.slo.ttft_s) for a in second.models] == [("m0", 9.0), ("m1", 2.0)]


async def test_reconfigure__checkpoint_missing_then_there__is_leased_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_shapes, "_RETRY_S", 0.01)
    controller = Controller(token="t", planner_for=in_place)
    missing = tmp_path / "late"
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a"), str(missing)))
    unit = FakeUnit(unit_id="u")
    first = await controller.heartbeat(unit.report())
    assert [a.model for a in first.models] == ["m0"]
    state = (await controller.status()).models[1]
    assert "no checkpoint at" in (state.problem or "")

    checkpoint(missing)
    until_s = time.monotonic() + 30
    lease = first
    while len(lease.models) < 2 and time.monotonic() < until_s:
        await asyncio.sleep(0.01)
        lease = await controller.heartbeat(unit.report())

    assert [a.model for a in lease.models] == ["m0", "m1"]
    assert lease.version > first.version
    assert (await controller.status()).models[1].problem is None


async def test_fleet_view__before_the_first_unit__waits_for_it(tmp_path: Path) -> None:
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a")))
    asked = asyncio.create_task(controller.fleet_view())
    await asyncio.sleep(0)
    assert not asked.done()

    await controller.heartbeat(FakeUnit(unit_id="u").report())
    view = await asyncio.wait_for(asked, 30)

    assert [u.report.unit_id for u in view.units] == ["u"]
    assert view.stream_token == "t"


async def test_controller__killed_and_started_again__goes_on_with_plan_and_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "_KEEP_EVERY_S", 0.01)
    config = user_config(checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b"), state={"folder": str(tmp_path)})
    first, unit = Controller(token="t", planner_for=in_place), FakeUnit(unit_id="u")
    await first.reconfigure(config)
    for _ in range(4):
        unit.obey(await first.heartbeat(unit.report()))
        unit.progress()
    rates = {"m0": 7.0, "m1": 1.0}
    first._loop._popularity._models["m0"].rate.per_s = 7.0
    kept = tmp_path / "fleet.sqlite3"
    until_s = time.monotonic() + 30
    while not (kept.exists() and b'"rate_per_s":7.0' in kept.read_bytes()):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)
    before = unit.ready()
    first._keeping.cancel()  # as a process that is killed: it says no good-bye

    second = Controller(token="t", planner_for=in_place)
    await second.reconfigure(config)
    for _ in range(4):
        unit.obey(await second.heartbeat(unit.report()))
        assert unit.ready() == before
    status = await second.status()

    assert {m.model: m.rate_per_s for m in status.models} == rates
    assert [d.reason for d in status.decisions] == [d.reason for d in (await first.status()).decisions]


async def test_controller__state_cannot_be_written_for_a_while__says_so_once_and_is_kept_afterwards(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_module, "_KEEP_EVERY_S", 0.01)
    controller, calls = Controller(token="t", planner_for=in_place), 0

    def keep_events(log: object) -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise TypeError("a bug")

    await controller.reconfigure(user_config())
    monkeypatch.setattr(controller._state, "keep_events", keep_events)
    async with asyncio.timeout(60):
        while calls < 6:  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)

    assert [r.getMessage() for r in caplog.records].count(
        "state cannot be written; the control loop goes on without"
    ) == 1


async def test_controller__store_that_cannot_be_used__serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "no folder").write_text("")
    config = user_config(checkpoint(tmp_path / "a"), state={"folder": str(tmp_path / "no folder")})
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(config)

    lease = await controller.heartbeat(FakeUnit(unit_id="u").report())

    assert [a.model for a in lease.models] == ["m0"]


async def test_reconfigure__another_folder_for_the_state__has_the_events_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "_KEEP_EVERY_S", 0.01)
    one, other = (user_config(state={"folder": str(tmp_path / name)}) for name in ("one", "other"))
    controller, told = Controller(token="t", planner_for=in_place), list[tuple[FleetEvent, ...]]()
    for config in (one, other):
        await controller.reconfigure(config)
        told.append(msgspec.json.decode(await controller.events(60.0), type=tuple[FleetEvent, ...]))
        await asyncio.sleep(0.1)
    await asyncio.to_thread(controller._state.close)

    successor = Controller(token="t", planner_for=in_place)
    await successor.reconfigure(other)
    found = msgspec.json.decode(await successor.events(60.0), type=tuple[FleetEvent, ...])
    assert [e.kind for e in told[0]] == [EventKind.CONTROLLER_STARTED]
    assert found[:1] == told[0]


async def test_controller__user_without_a_home__serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError("uid not found")

    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a"), state={}))

    lease = await controller.heartbeat(FakeUnit(unit_id="u").report())

    assert [a.model for a in lease.models] == ["m0"]


async def test_fleet_view__gateway_brings_events__they_are_told_counted_and_kept(tmp_path: Path) -> None:
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a")))
    await controller.heartbeat(FakeUnit(unit_id="u").report())
    lost = {"at_s": time.time(), "text": "lost", "unit": "u", "model": "m0"}
    moved = FleetEvent(kind=EventKind.REQUEST_MOVED, request_id="r", **lost)
    brought = pickle.loads(pickle.dumps((moved,)))

    view = await controller.fleet_view(DemandReport(gateway_id="g", models=()), brought)
    told = msgspec.json.decode(await controller.events(60.0), type=tuple[FleetEvent, ...])

    assert view.events["request_moved"] == 1
    assert moved in told
    assert [e.kind for e in told][:2] == [EventKind.CONTROLLER_STARTED, EventKind.UNIT_JOINED]


async def test_fleet_view__gateway_gave_up_waiting_and_brings_events_again__they_count_once(tmp_path: Path) -> None:
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a")))
    moved = FleetEvent(at_s=time.time(), kind=EventKind.REQUEST_MOVED, text="lost", unit="u", model="m0")
    demand = DemandReport(gateway_id="g", models=())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(controller.fleet_view(demand, (moved,)), 0.05)
    await controller.heartbeat(FakeUnit(unit_id="u").report())

    view = await controller.fleet_view(demand, (moved,))

    assert view.events["request_moved"] == 1


async def news_of(controller, *asked) -> FleetNews:
    return read_news(await controller.told_news(*asked))


async def test_told_news__nothing_new__answers_after_the_wait_and_counts_the_gateway(tmp_path: Path) -> None:
    controller = Controller(token="t", planner_for=in_place)
    await controller.reconfigure(user_config(checkpoint(tmp_path / "a")))
    unit, demand = FakeUnit(unit_id="u"), DemandReport(gateway_id="g", models=())
    unit.obey(await controller.heartbeat(unit.report()))
    await controller.heartbeat(unit.report())
    first = await news_of(controller, demand, (), None, 30.0)  # whoever knows nothing does not wait
    began_s = time.monotonic()
    waiting = asyncio.create_task(news_of(controller, demand, (), first.version, 0.2))
    await asyncio.sleep(0.05)
    await controller.heartbeat(unit.report())

    news = await waiting

    assert time.monotonic() - began_s >= 0.2
    assert news.version == first.version
    assert (news.view.models, news.view.num_gateways) == (first.view.models, 1)


async def test_told_news__unit_tells_something_or_the_catalog_changes__answers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A copy that took long to make, on a busy machine, is otherwise shared with who asks next.
    monkeypatch.setattr("deploy.serve.waiting_gateways._MOST_SHARE", float("inf"))
    controller = Controller(token="t", planner_for=in_place)
    source = checkpoint(tmp_path / "a")
    await controller.reconfigure(user_config(source))
    unit, demand = FakeUnit(unit_id="u"), DemandReport(gateway_id="g", models=())
    unit.obey(await controller.heartbeat(unit.report()))
    await controller.heartbeat(unit.report())
    known = (await news_of(controller, demand, (), None, 0.0)).version

    waiting = asyncio.create_task(news_of(controller, demand, (), known, 300.0))
    await asyncio.sleep(0)
    unit.progress()
    await controller.heartbeat(unit.report())
    told = await asyncio.wait_for(waiting, 30)
    waiting = asyncio.create_task(news_of(controller, demand, (), told.version, 300.0))
    await asyncio.sleep(0)
    await controller.reconfigure(user_config(source, source))
    changed = await asyncio.wait_for(waiting, 30)
    second = await news_of(controller, DemandReport(gateway_id="h", models=()), (), None, 0.0)
    shared = await asyncio.wait_for(news_of(controller, demand, (), changed.version, 300.0), 30)

    assert [s.phase for u in told.view.units for s in u.report.models] == [ModelPhase.READY]
    assert [m.model for m in changed.view.models] == ["m0", "m1"]
    assert (second.view.num_gateways, shared.view.num_gateways) == (2, 2)


async def test_controller__killed_and_started_again__tells_a_new_gateway_what_keys_owe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "_KEEP_EVERY_S", 0.01)
    config = user_config(checkpoint(tmp_path / "a"), state={"folder": str(tmp_path)})
    first = Controller(token="t", planner_for=in_place)
    await first.reconfigure(config)
    assert await first.key_usage("g1", None) == ()
    assert await first.key_usage("g1", (KeyUsage(key_id="k", tokens_left=-5.0),)) == ()
    kept = tmp_path / "fleet.sqlite3"
    until_s = time.monotonic() + 30
    while not (kept.exists() and b'"key_id":"k"' in kept.read_bytes()):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)
    first._keeping.cancel()  # as a process that is killed

    second = Controller(token="t", planner_for=in_place)
    await second.reconfigure(config)
    (told,) = await second.key_usage("g2", None)

    assert told.key_id == "k"
    assert -5.0 <= told.tokens_left < -4.0


async def test_reconfigure__forecast_with_a_trace__is_read_and_one_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    rows = ({"timestamp": 1000 * t, "input_length": 10, "output_length": 1} for t in range(0, 2401, 10))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scaling = {"forecast": {"season_s": 2400, "trace": str(trace)}}
    pool = {"nodes": {"min": 1, "max": 2}, "scaling": scaling, "devices_per_node": 1, "mesh_gpus": 1}
    config = user_config(checkpoint(tmp_path / "a"), pools={"p": pool})
    forecasts = []
    for _ in range(2):
        controller = Controller(token="t", planner_for=in_place)
        await controller.reconfigure(config)
        lease = await controller.heartbeat(FakeUnit(unit_id="u").report())
        assert [a.model for a in lease.models] == ["m0"]
        forecasts.append(msgspec.json.decode(await controller.fleet_report(explain="m0"))["forecast"])
        trace.unlink(missing_ok=True)

    assert forecasts[0]["rate_per_s"] == pytest.approx(0.1)
    assert forecasts[1] is None
