"""Decisions as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

The JSON array format of the Trace Event Format: a process per unit, a track per lane with a slice per launch (each of
several decode lanes has its own), a track per lane with its bubbles, counters for the partition and the KV blocks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pdmux_actor.scheduling.decision import Decision, DecisionKind, LogExcerpt
from pdmux_actor.scheduling.launch import Lane

TraceEvent = dict[str, Any]  # JSON

_LANE_TRACKS: Mapping[Lane, int] = {Lane.PREFILL: 1, Lane.DECODE: 2}
_BUBBLE_TRACKS: Mapping[Lane, int] = {Lane.PREFILL: 3, Lane.DECODE: 4}
_LAST_TRACK = 4  # further decode lanes follow


def chrome_trace(logs: Mapping[str, LogExcerpt]) -> list[TraceEvent]:
    """`logs` by unit. Times count from the first decision of all; units are aligned by their machines' Unix time."""
    origin_s = min((_unix_s(log, log.decisions[0]) for log in logs.values() if log.decisions), default=0.0)
    events: list[TraceEvent] = []
    for pid, (unit, log) in enumerate(sorted(logs.items()), start=1):
        events += _names(pid, unit, max((d.decode_lane for d in log.decisions), default=0))
        events += _UnitTrace(pid, log.unix_s - log.now_s - origin_s).events(log)
    return events


def _unix_s(log: LogExcerpt, decision: Decision) -> float:
    began_s = decision.now_s if decision.ready_s is None else min(decision.now_s, decision.ready_s)
    return log.unix_s - (log.now_s - began_s)


def _track(lane: Lane, decode_lane: int) -> int:
    return _LANE_TRACKS[lane] if decode_lane == 0 else _LAST_TRACK + decode_lane


def _names(pid: int, unit: str, last_decode_lane: int) -> Iterator[TraceEvent]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": unit}}
    tracks = [(tid, lane.value) for lane, tid in _LANE_TRACKS.items()]
    tracks += [(tid, f"{lane.value} bubbles") for lane, tid in _BUBBLE_TRACKS.items()]
    tracks += [(_LAST_TRACK + i, f"{Lane.DECODE.value} {i + 1}") for i in range(1, last_decode_lane + 1)]
    for tid, name in tracks:
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


class _UnitTrace:
    def __init__(self, pid: int, offset_s: float) -> None:
        self._pid = pid
        self._offset_s = offset_s  # from the engine's clock to the trace's

    def events(self, log: LogExcerpt) -> Iterator[TraceEvent]:
        partition: tuple[int, int] | None = None
        for decision in log.decisions:
            if decision.lane is None:
                yield self._instant(decision)
            else:
                yield from self._launch(decision, decision.lane)
                yield self._counter("KV blocks", decision, used=decision.used_blocks)
            if (decision.prefill_sms, decision.decode_sms) != partition:
                partition = decision.prefill_sms, decision.decode_sms
                yield self._counter("SMs", decision, prefill=partition[0], decode=partition[1])

    def _launch(self, decision: Decision, lane: Lane) -> Iterator[TraceEvent]:
        if decision.bubble_s > 0 and decision.ready_s is not None:
            yield self._slice("bubble", "bubble", _BUBBLE_TRACKS[lane], decision.ready_s, decision.bubble_s, {})
        started_s, measured_s = decision.started_s, decision.measured_s
        if started_s is None or measured_s is None:
            return  # in flight: its end is not known
        name = f"{decision.kind.value} {decision.model}"
        track, args = _track(lane, decision.decode_lane), _arguments(decision, measured_s)
        yield self._slice(name, decision.kind.value, track, started_s, measured_s, args)

    def _slice(
        self, name: str, category: str, tid: int, start_s: float, length_s: float, args: Mapping[str, Any]
    ) -> TraceEvent:
        times = {"ts": self._us(start_s), "dur": round(1e6 * length_s, 3)}
        return {"ph": "X", "name": name, "cat": category, "pid": self._pid, "tid": tid, **times, "args": dict(args)}

    def _instant(self, decision: Decision) -> TraceEvent:
        place = {"pid": self._pid, "tid": _LANE_TRACKS[Lane.PREFILL], "ts": self._us(decision.now_s), "s": "t"}
        return {"ph": "i", "name": decision.launch, "cat": decision.kind.value, **place, "args": {}}

    def _counter(self, name: str, decision: Decision, **values: int) -> TraceEvent:
        return {"ph": "C", "name": name, "pid": self._pid, "tid": 0, "ts": self._us(decision.now_s), "args": values}

    def _us(self, time_s: float) -> float:
        return round(1e6 * (time_s + self._offset_s), 3)


def _arguments(decision: Decision, measured_s: float) -> Mapping[str, Any]:
    args: dict[str, Any] = {"decision": decision.index, "model": decision.model}
    if decision.kind is DecisionKind.PREFILL:
        args |= {"batch": decision.batch_id, "layers": f"[{decision.first_layer},{decision.last_layer})"}
    else:
        args |= {"decoding": decision.num_decoding, "steps": decision.steps}
    if decision.chunks:
        args |= {"prompt_tokens": decision.prompt_tokens}
    args |= {"tokens": decision.prompt_tokens + decision.num_decoding * decision.steps}
    args |= {"predicted_ms": _ms(decision.predicted_s), "measured_ms": _ms(measured_s)}
    args |= {"bubble_ms": _ms(decision.bubble_s)}
    args |= {"prefill_sms": decision.prefill_sms, "decode_sms": decision.decode_sms}
    if decision.part_sms:
        args |= {"part_sms": decision.part_sms}
    args |= {"requests": ", ".join(decision.request_ids), "failed": decision.failed}
    return args


def _ms(time_s: float) -> float:
    return round(1e3 * time_s, 3)
