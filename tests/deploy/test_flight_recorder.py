"""What the flight recorder keeps of a fleet in virtual time, and the stories that are told of it."""

import logging
from dataclasses import replace

import msgspec
import pytest
from fleet_model import FakeUnit, World, catalog

from deploy.commands.duration import seconds_of
from deploy.commands.incident import lines_of
from deploy.control.control_rules import ControlTiming
from deploy.control.flight_log import SEGMENTS, EventSegment, FlightLog
from deploy.control.flight_recorder import FlightRecorder
from deploy.errors import OptionNotUsable
from deploy.inspection.incident_story import in_short, story_of, unknown_name
from pdmux_actor.lease import Lease
from pdmux_actor.messages import Slo
from router.request_terms import GrantedSlo
from router.telemetry.fleet_event import EventKind, FleetEvent, RequestEvents
from router.telemetry.service_report import ServiceReport

SECONDS_TO_EXPIRY = int(ControlTiming().expiry_s / 0.5) + 4


def event(at_s: float, kind: EventKind = EventKind.PLAN, **fields: object) -> FleetEvent:
    return FleetEvent(at_s=at_s, kind=kind, text="t", **fields)


@pytest.fixture
def story() -> tuple[FleetEvent, ...]:
    """A unit of two dies under load and another takes its place."""
    recorder = FlightRecorder(lambda: 1000.0)
    world = World(catalog("a", "b"), expected_units=2, recorder=recorder)
    dying = world.start_unit()
    world.start_unit()
    world.beat(6)
    world.kill_unit(dying.unit_id)
    world.beat(SECONDS_TO_EXPIRY)
    world.start_unit()
    world.beat(10)
    return recorder.fetch()


def kinds(events: tuple[FleetEvent, ...]) -> list[str]:
    return [e.kind.value for e in events]


def test_recorder__unit_dies_and_another_comes__has_all_that_happened_in_order(story: tuple[FleetEvent, ...]) -> None:
    told = kinds(story)

    assert told.count("unit_joined") == 2
    assert told[told.index("unit_lost") :].count("unit_restarted") == 1
    after = told[told.index("unit_lost") :]
    assert after.index("plan") < after.index("move") < after.index("model_loading") < after.index("model_ready")
    assert [e.at_s for e in story] == sorted(e.at_s for e in story)
    assert all(e.at_s > 1000 for e in story)


@pytest.mark.parametrize(("is_drained", "kind"), [(True, "unit_left"), (False, "unit_lost")])
def test_recorder__node_goes_after_its_unit_is_empty__nothing_was_lost(is_drained: bool, kind: str) -> None:
    recorder = FlightRecorder()
    world = World(catalog("a"), expected_units=2, recorder=recorder)
    for node in ("n1", "n2"):
        world.start_unit(node=node)
    world.beat(6)
    (unit_id,) = world.serving("a")
    if is_drained:
        world.loop.set_going_nodes(frozenset({world.units[unit_id].node}))
        world.beat(10)
        world.loop.set_going_nodes(frozenset())  # Ray tells of nodes that are there
    world.kill_unit(unit_id)
    world.beat(SECONDS_TO_EXPIRY)

    told = kinds(recorder.fetch())
    assert [k for k in told if k in ("unit_left", "unit_lost")] == [kind]


def test_recorder__another_comes_before_the_one_that_told_its_death_is_gone__is_in_its_place() -> None:
    recorder = FlightRecorder()
    dying = replace(FakeUnit(unit_id="u1").report(), failure="its engine was killed", is_leaving=True)
    lease = Lease(version=1, models=(), policy="mux", stream_token="t")
    recorder.heard(1.0, dying, lease)
    recorder.heard(1.5, dying, lease)

    recorder.unit_joined(2.0, FakeUnit(unit_id="u2").report())
    recorder.unit_gone(3.0, dying, died=True)
    recorder.unit_joined(4.0, FakeUnit(unit_id="u3").report())

    assert kinds(recorder.fetch()) == ["unit_restarted", "unit_lost", "unit_joined"]


def test_recorder__events__name_unit_and_model(story: tuple[FleetEvent, ...]) -> None:
    (lost,) = [e for e in story if e.kind is EventKind.UNIT_LOST]
    ready = [e for e in story if e.kind is EventKind.MODEL_READY]

    assert lost.unit == "u1"
    assert "it held" in lost.text
    assert all(e.unit and e.model and e.took_s is not None for e in ready)
    assert all(e.unit and e.model for e in story if e.kind is EventKind.MOVE)


def test_recorder__each_event__is_one_log_line_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recorder = FlightRecorder()
    recorder.record(1.0, EventKind.MODEL_FAILED, "does not load", unit="u", model="m")
    recorder.take([event(2.0, EventKind.REQUEST_MOVED, unit="u", model="m", request_id="r")])

    told = [(r.levelname, r.getMessage(), r.kind, r.unit, r.model) for r in caplog.records]
    assert told == [
        ("WARNING", "fleet event", "model_failed", "u", "m"),
        ("INFO", "fleet event", "request_moved", "u", "m"),
    ]
    assert caplog.records[1].request_id == "r"


def test_recorder__counts__have_every_kind_from_the_start_and_what_was_summed_up() -> None:
    recorder = FlightRecorder()
    assert recorder.counts() == {kind.value: 0 for kind in EventKind}

    recorder.take([event(1.0, EventKind.SLO_MISSED, count=40)])

    assert recorder.counts()["slo_missed"] == 40


def test_request_events__a_thousand_in_a_moment__are_few_and_their_counts_are_right() -> None:
    now_s = 0.0
    events = RequestEvents(lambda: now_s)
    for i in range(1000):
        events.moved(model="m", unit="u", request_id=str(i), reason="gone")
        events.shed(model="m", request_id=str(i))
    first = events.fetch()
    now_s = 11.0
    rest = events.fetch()

    assert len(first) == 64 + 1
    assert [(e.kind, e.count) for e in rest] == [(EventKind.REQUEST_MOVED, 936), (EventKind.REQUEST_SHED, 999)]
    assert events.fetch() == ()


def test_request_events__answer_late__is_told_with_what_was_late() -> None:
    events = RequestEvents(lambda: 0.0)
    slo = Slo(ttft_s=1.0, tbt_s=0.1)
    late = ServiceReport(granted=GrantedSlo(slo=slo), started_s=0.0, request_id="r", unit_id="u")
    late.ttft_s, late.worst_gap_s = 2.5, 0.3
    events.missed("m", late)

    (told,) = events.fetch()
    assert told.text == "first token after 2.50 s, target 1 s; a gap of 0.30 s, target 0.1 s"
    assert (told.kind, told.unit, told.model, told.request_id) == (EventKind.SLO_MISSED, "u", "m", "r")


def test_request_events__could_not_be_passed_on__come_again() -> None:
    events = RequestEvents(lambda: 0.0)
    events.shed(model="m", request_id="r")
    taken = events.fetch()
    events.give_back(taken)

    assert events.fetch() == taken


def test_log__more_than_it_keeps__has_the_newest_and_requests_push_out_no_losses() -> None:
    log = FlightLog()
    log.add([event(0.0, EventKind.UNIT_LOST)])
    log.add(event(float(i), EventKind.SLO_MISSED) for i in range(1, 20_001))

    kept = log.since(0.0)

    assert kept[0].kind is EventKind.UNIT_LOST
    assert len(kept) <= 1 + SEGMENTS * 256
    assert kept[-1].at_s == 20_000


def test_log__written_and_read_back__is_the_same_and_goes_on() -> None:
    documents: dict[str, bytes] = {}
    log = FlightLog()
    for i in range(20_000):
        log.add([event(float(i))])
        if i % 500 == 0:
            documents |= {name: msgspec.json.encode(segment) for name, segment in log.fresh()}
    documents |= {name: msgspec.json.encode(segment) for name, segment in log.fresh()}

    again = FlightLog()
    again.restore("fleet", [msgspec.json.decode(d, type=EventSegment) for d in documents.values()])
    assert again.since(0.0) == log.since(0.0)
    again.add([event(20_001.0)])
    changed = dict(again.fresh())

    assert len(documents) == SEGMENTS
    assert again.since(20_000.5)[-1].at_s == 20_001.0
    assert len(changed) == 1


def test_story__of_a_model__leaves_out_units_that_never_had_it(story: tuple[FleetEvent, ...]) -> None:
    told = story_of(story, model="a")

    units = {e.unit for e in story if e.model == "a"}
    assert {e.model for e in told} == {"a", ""}
    assert {e.unit for e in told if e.unit} == units


def test_story__of_a_unit__has_its_events_and_the_plans(story: tuple[FleetEvent, ...]) -> None:
    told = story_of(story, unit="u2")

    assert {e.unit for e in told} == {"u2", ""}
    assert EventKind.PLAN in {e.kind for e in told}


def test_story__of_a_request__has_its_unit_s_events_around_it_and_no_other_request() -> None:
    events = (
        event(0.0, EventKind.UNIT_JOINED, unit="u"),
        event(100.0, EventKind.UNIT_LOST, unit="u"),
        event(100.1, EventKind.REQUEST_MOVED, unit="u", model="m", request_id="r"),
        event(100.1, EventKind.REQUEST_MOVED, unit="u", model="m", request_id="other"),
        event(101.0, EventKind.UNIT_LOST, unit="elsewhere"),
    )

    told = story_of(events, request_id="r")

    assert [(e.kind, e.unit) for e in told] == [(EventKind.UNIT_LOST, "u"), (EventKind.REQUEST_MOVED, "u")]
    assert story_of(events, request_id="unknown") == ()


def test_lines__events__have_a_summary_and_one_line_each() -> None:
    first, *rest = lines_of(
        [
            event(0.0, EventKind.UNIT_LOST, unit="u"),
            event(1.25, EventKind.REQUEST_MOVED, unit="u", model="m", request_id="r", count=3),
        ]
    )

    assert first == "1970-01-01 00:00:00 to 00:00:01 UTC: 1 unit lost, 3 requests went on elsewhere"
    assert rest == ["00:00:00.000  unit_lost      u: t", "00:00:01.250  request_moved  u m r: t"]
    assert in_short([]) == "nothing was lost, moved, refused or late"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("2d", 172_800)])
def test_since__a_time__is_read(text: str, seconds: int) -> None:
    assert seconds_of(text, option="--since") == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "0s", "-1h", "1.5h", "9999d", "1 h"])
def test_since__no_time__is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(OptionNotUsable, match="such as 90s, 30m, 1h or 2d"):
        seconds_of(text, option="--since")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"model": "chatt"}, "no event names model 'chatt'; they name chat, code"),
        ({"unit": "u9", "model": "chat"}, "no event names unit 'u9'; they name u1"),
        ({"request_id": "r9"}, "no event names request 'r9'"),
        ({"model": "code", "unit": "u1"}, None),
    ],
)
def test_unknown_name__of_what_is_asked_for__is_told_with_those_that_events_name(
    asked: dict[str, str], told: str | None
) -> None:
    events = [event(1.0, model="chat", unit="u1", request_id="r1"), event(2.0, model="code"), event(3.0)]

    assert unknown_name(events, **asked) == told
