import json
from itertools import pairwise

import msgspec
import pytest
from engine_rig import VirtualEngine, make_request

from pdmux_actor.scheduling.chrome_trace import chrome_trace
from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt
from pdmux_actor.scheduling.events import Abort, Arrival


class Names(msgspec.Struct, tag_field="ph", tag="M", forbid_unknown_fields=True):
    name: str
    pid: int
    tid: int
    args: dict[str, str | int]


class Slice(msgspec.Struct, tag_field="ph", tag="X", forbid_unknown_fields=True):
    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, str | int | float | bool]


class Instant(msgspec.Struct, tag_field="ph", tag="i", forbid_unknown_fields=True):
    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    s: str
    args: dict[str, str]


class Counter(msgspec.Struct, tag_field="ph", tag="C", forbid_unknown_fields=True):
    name: str
    pid: int
    tid: int
    ts: float
    args: dict[str, int]


def parsed(logs):
    """The trace as a strict reader of its JSON text sees it."""
    text = json.dumps(chrome_trace(logs), allow_nan=False)
    return msgspec.json.decode(text, type=list[Names | Slice | Instant | Counter])


def decode(index, start_s, **fields):
    return Decision(
        index=index,
        now_s=start_s,
        kind=DecisionKind.DECODE,
        prefill_sms=0,
        decode_sms=4,
        started_s=start_s,
        finished_s=start_s + 0.5,
        **fields,
    )


@pytest.fixture(scope="module")
def log():
    """Prefill beside decode, an aborted prompt between its slices."""
    events = [
        (0.0, Arrival(make_request("decoding", max_tokens=120, tbt_s=0.006))),
        (0.05, Arrival(make_request("long", prompt_tokens=200, max_tokens=2, tbt_s=0.006))),
        (0.15, Arrival(make_request("gone", prompt_tokens=200, max_tokens=2, tbt_s=0.006))),
        (0.17, Abort("gone")),
    ]
    engine = VirtualEngine(events, quota_blocks=600).run()
    decisions = tuple(engine.scheduler.log.decisions())
    return LogExcerpt(now_s=engine.executor.now(), unix_s=1e9 + engine.executor.now(), decisions=decisions)


def test_trace__a_run__has_one_slice_per_launch_on_the_track_of_its_lane(log):
    events = parsed({"u": log})

    tracks = {e.tid: e.args["name"] for e in events if isinstance(e, Names) and e.name == "thread_name"}
    drawn = [(tracks[e.tid], e.args["decision"], round(e.dur)) for e in events if isinstance(e, Slice) and e.args]
    launches = [d for d in log.decisions if d.lane is not None]
    assert drawn == [(d.lane.value, d.index, round(1e6 * d.measured_s)) for d in launches]
    assert {lane for lane, _, _ in drawn} == {"prefill", "decode"}
    assert [e.name for e in events if isinstance(e, Instant) if e.cat == "drop"] == ["drop batch 3"]


def test_trace__slices_of_a_track__do_not_overlap(log):
    slices = [e for e in parsed({"u": log}) if isinstance(e, Slice)]

    for tid in {e.tid for e in slices}:
        track = sorted((e for e in slices if e.tid == tid), key=lambda e: e.ts)
        assert all(a.ts + a.dur <= b.ts + 0.01 for a, b in pairwise(track))


def test_trace__slice__says_what_was_expected_and_what_it_took(log):
    slices = [e for e in parsed({"u": log}) if isinstance(e, Slice) and e.cat == "prefill"]
    launch = next(d for d in log.decisions if d.kind is DecisionKind.PREFILL and d.batch_id == 2)

    args = next(e.args for e in slices if e.args["decision"] == launch.index)
    assert (args["model"], args["layers"], args["tokens"]) == ("a", f"[0,{launch.last_layer})", 200)
    assert args["predicted_ms"] == pytest.approx(1e3 * launch.predicted_s, abs=1e-3)
    assert args["measured_ms"] == pytest.approx(1e3 * launch.measured_s, abs=1e-3)
    assert args["requests"] == "long"


def test_trace__counters__follow_partition_and_kv(log):
    counters = [e for e in parsed({"u": log}) if isinstance(e, Counter)]

    partitions = [e.args for e in counters if e.name == "SMs"]
    assert all(a != b for a, b in pairwise(partitions))
    assert {"prefill": 1, "decode": 1} in partitions
    blocks = [e.args["used"] for e in counters if e.name == "KV blocks"]
    assert len(blocks) == sum(d.lane is not None for d in log.decisions)
    assert max(blocks) > min(blocks)


def test_trace__bubble__ends_where_its_launch_starts():
    bubbly = LogExcerpt(now_s=9.0, unix_s=9.0, decisions=(decode(0, 1.0), decode(1, 2.0, ready_s=1.5)))

    bubble, after = [e for e in parsed({"u": bubbly}) if isinstance(e, Slice)][1:]

    assert (bubble.name, bubble.dur) == ("bubble", 500_000)
    assert bubble.ts + bubble.dur == after.ts
    assert bubble.tid != after.tid


def test_trace__units_with_clocks_of_their_own__are_aligned_by_unix_time():
    first = LogExcerpt(now_s=100.0, unix_s=1000.0, decisions=(decode(0, 90.0),))
    second = LogExcerpt(now_s=5.0, unix_s=1000.0, decisions=(decode(0, 1.0),))

    starts = [(e.pid, e.ts) for e in parsed({"b": second, "a": first}) if isinstance(e, Slice)]

    assert starts == [(1, 0.0), (2, 6e6)]


def test_trace__launch_in_flight_or_empty_log__draws_nothing():
    flying = msgspec.structs.replace(decode(0, 1.0), started_s=None, finished_s=None)
    logs = {
        "a": LogExcerpt(now_s=2.0, unix_s=2.0, decisions=(flying,)),
        "b": LogExcerpt(now_s=2.0, unix_s=2.0, decisions=()),
    }

    assert not [e for e in parsed(logs) if isinstance(e, Slice)]
