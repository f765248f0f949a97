"""What a replica writes: one JSON line per record, with every field."""

import io
import json
import logging
from datetime import datetime

from deploy.control.decision_history import DecisionHistory
from deploy.control.flight_recorder import FlightRecorder
from pdmux_actor.serving.engine_log import JsonLines
from placement.plan_steps import LoadModelStep


def written(name: str, level: int, message: str, *arguments: object, **options) -> dict:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines({"deployment": "Gateway", "unit": "own"}))
    logger = logging.Logger(name)
    logger.addHandler(handler)
    logger.log(level, message, *arguments, **options)
    (line,) = stream.getvalue().splitlines()
    return json.loads(line)


def test_line__fields_of_record_and_process__are_all_there_and_the_records_win() -> None:
    line = written("router.x", logging.WARNING, "lost %d", 2, extra={"request_id": "r", "unit": "u1", "kept": (1, 2)})

    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "WARNING",
        "logger": "router.x",
        "message": "lost 2",
        "deployment": "Gateway",
        "unit": "u1",
        "request_id": "r",
        "kept": [1, 2],
    }


def test_line__field_that_json_has_not_and_text_of_two_lines__stays_one_line() -> None:
    line = written("router.x", logging.INFO, "a\nb", extra={"error": ValueError("no"), "model": "m\n"})

    assert (line["message"], line["error"], line["model"]) == ("a\nb", "ValueError('no')", "m\n")


def test_decisions__new_repeated_and_new__are_logged_once_each_with_reason_and_moves(caplog) -> None:
    caplog.set_level(logging.INFO, logger="deploy")
    history = DecisionHistory(FlightRecorder())
    history.note(1.0, "plan", "the control loop started")
    history.note(2.0, "kept", "demand is as it was")
    history.note(3.0, "kept", "demand is as it was")
    history.moved(4.0, (LoadModelStep(unit_id="u1", model="m", quota_blocks=1),), ("load m on u1",))

    told = [(r.getMessage(), r.kind, r.reason, getattr(r, "unit", None)) for r in caplog.records]
    assert told == [
        ("fleet event", "plan", "the control loop started", None),
        ("fleet event", "kept", "demand is as it was", None),
        ("fleet event", "move", "load m on u1", "u1"),
    ]
