"""Which pod a rolling update takes next, and when a fleet is whole. tests/k8s runs it against stand-ins."""

from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from deploy.control.cordons import Cordon
from deploy.control.fleet_status import FleetStatus, ModelState, UnitStatus
from deploy.errors import ApiServerNotNamed, ApiServerRefused, RolloutStuck
from deploy.kubernetes.api_server import ApiServer, api_client
from deploy.kubernetes.ray_pods import PodGroup, RayPod
from deploy.kubernetes.rolling_update import Evict, RollingUpdate, WaitFor, next_step
from deploy.kubernetes.settled_fleet import what_is_missing
from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from placement.plan import Plan

GROUP = PodGroup(name="p", template="new", replicas=2)
OLD = RayPod(name="a", group="p", template="old", is_ready=True, is_going=False)
NEW = RayPod(name="b", group="p", template="new", is_ready=True, is_going=False)


@pytest.mark.parametrize(
    ("pods", "step"),
    [
        ((NEW, replace(NEW, name="c")), None),
        ((OLD, NEW), Evict(pod=OLD)),
        ((OLD,), WaitFor(what="p: 1 of 2 pods are there")),
        ((OLD, replace(NEW, is_ready=False)), WaitFor(what="pod b to be ready")),
        ((replace(OLD, is_going=True), NEW), WaitFor(what="pod a to end")),
        ((OLD, replace(OLD, name="c", is_ready=False)), Evict(pod=replace(OLD, name="c", is_ready=False))),
        ((OLD, NEW, replace(OLD, name="d", group="q")), Evict(pod=OLD)),
    ],
)
def test_next_step__pods_of_a_group__one_at_a_time_and_broken_ones_first(
    pods: tuple[RayPod, ...], step: Evict | WaitFor | None
) -> None:
    assert next_step([GROUP], pods, lambda: None) == step


def test_next_step__fleet_misses_something__only_a_pod_that_serves_nothing_goes() -> None:
    broken = replace(OLD, name="c", is_ready=False)

    assert next_step([GROUP], (OLD, NEW), lambda: "a model") == WaitFor(what="a model")
    assert next_step([GROUP], (OLD, broken), lambda: "a model") == Evict(pod=broken)


def unit(name: str, phase: ModelPhase, **changes: object) -> UnitStatus:
    report = UnitReport(
        unit_id=name,
        node="n",
        pool="p",
        num_gpus=1,
        endpoint="10.0.0.1:1",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=1,
        lease_version=1,
        models=(ModelStatus(model="m", phase=phase),),
    )
    of_report = {k: v for k, v in changes.items() if k in ("wants_to_leave", "is_leaving")}
    rest = {k: v for k, v in changes.items() if k not in of_report}
    return UnitStatus(report=replace(report, **of_report), **{"silent_s": 0.5, **rest})


def fleet(
    *units: UnitStatus, phases: tuple[ModelPhase, ...] = (ModelPhase.READY,), is_asleep: bool = False
) -> FleetStatus:
    state = ModelState(model="m", phases=phases, planned_units=(), problem=None, is_asleep=is_asleep)
    return FleetStatus(
        models=(state,), units=units, policy="mux", plan=Plan(units=()), goal=Plan(units=()), decisions=()
    )


READY = unit("u1", ModelPhase.READY)


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        (fleet(READY, unit("u2", ModelPhase.READY)), None),
        (fleet(READY, unit("u2", ModelPhase.ASLEEP)), None),
        (fleet(READY), "1 of 2 units are in use"),
        (fleet(READY, unit("u2", ModelPhase.READY, wants_to_leave=True)), "1 of 2 units are in use"),
        (fleet(READY, unit("u2", ModelPhase.READY, is_leaving=True)), "1 of 2 units are in use"),
        (fleet(READY, unit("u2", ModelPhase.READY, silent_s=9.0)), "1 of 2 units are in use"),
        (fleet(READY, unit("u2", ModelPhase.READY, out_for_s=60.0)), "1 of 2 units are in use"),
        (
            fleet(READY, unit("u2", ModelPhase.READY, cordon=Cordon(scope="unit", name="u2", drains=True))),
            "1 of 2 units are in use",
        ),
        (fleet(READY, unit("u2", ModelPhase.LOADING)), "model m on unit u2 is loading"),
        (fleet(READY, unit("u2", ModelPhase.FAILED)), "model m on unit u2 is failed"),
        (fleet(READY, READY, phases=()), "model m is not served"),
        (fleet(READY, READY, phases=(), is_asleep=True), None),
    ],
)
def test_fleet__of_two_units__is_whole_when_both_serve_and_nothing_moves(
    status: FleetStatus, missing: str | None
) -> None:
    assert what_is_missing(status, 2) == missing


def test_api_server__nobody_there__says_so() -> None:
    with api_client("http://127.0.0.1:9") as client, pytest.raises(ApiServerRefused, match="rayservices/f: no answer"):
        ApiServer(client, "llm").ray_service("f")


def test_api_server__refusal__is_told_with_the_servers_words() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(403, json={"message": "pods is forbidden"})

    with (
        httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(ApiServerRefused, match="403: pods is forbidden"),
    ):
        ApiServer(client, "llm").pods("c")


@pytest.mark.parametrize("text", ["<html>hello</html>", "[]", "", '{"data": []}'])
def test_api_server__is_another_server__is_told_so(text: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=text)

    with (
        httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(ApiServerRefused, match=r"rayservices/f: 200: .* --api-server"),
    ):
        ApiServer(client, "llm").ray_service("f")


def test_api_server__outside_a_pod__has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(ApiServerNotNamed, match="--api-server"):
        api_client(None)


def update(answer: Callable[[httpx.Request], httpx.Response], clock: list[float], **how: float) -> RollingUpdate:
    """Of a service `f`, in virtual time."""
    client = httpx.Client(base_url="http://server:8001", transport=httpx.MockTransport(answer))
    return RollingUpdate(
        ApiServer(client, "llm"),
        "f",
        revision=None,
        what_is_missing=lambda _: None,
        say=lambda _: None,
        clock=lambda: clock[0],
        sleep=lambda pause_s: clock.__setitem__(0, clock[0] + pause_s),
        **{"timeout_s": 2000.0, **how},
    )


@pytest.mark.parametrize(("timeout_s", "ends_s"), [(2000.0, 60.0), (5.0, 6.0)])
def test_rollout__server_never_answers__ends_soon_and_names_it(timeout_s: float, ends_s: float) -> None:
    now = [0.0]

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("timed out", request=request)

    with pytest.raises(ApiServerRefused, match=r"no answer: http://server:8001: timed out; correct --api-server"):
        update(answer, now, timeout_s=timeout_s).run()

    assert now[0] == ends_s


def test_rollout__server_goes_silent_later__is_waited_for_as_long_as_was_said() -> None:
    now = [0.0]

    def answer(request: httpx.Request) -> httpx.Response:
        if now[0] == 0.0:
            return httpx.Response(503, json={"message": "starting"})
        raise httpx.ConnectTimeout("timed out", request=request)

    with pytest.raises(RolloutStuck, match=r"after 500 s .* http://server:8001: timed out"):
        update(answer, now, timeout_s=500.0).run()

    assert now[0] == 500.0


def test_api_server__web_server_has_no_such_page__is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(404, text="<html>\n<h1>Not here</h1>\n</html>"))

    with (
        httpx.Client(base_url="http://web:80", transport=transport) as client,
        pytest.raises(
            ApiServerRefused, match=r"^GET \S+: 404: <html> <h1>Not here</h1> </html>, .* web.* --api-server"
        ),
    ):
        ApiServer(client, "llm").ray_service("f")
