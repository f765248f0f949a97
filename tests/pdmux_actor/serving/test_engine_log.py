"""What an engine process logs arrives at its actor with its fields."""

import json
import logging
import subprocess
import sys

import pytest

from pdmux_actor.serving.engine_log import read_line

WRITER = """
import logging
from pdmux_actor.serving.engine_log import log_to_actor
log_to_actor()
logging.getLogger("pdmux_actor.x").info("a model is awake", extra={"model": "m", "took_s": 0.5})
try:
    raise ValueError("no\\nsuch file")
except ValueError:
    logging.getLogger("pdmux_actor.x").exception("loading a model failed", extra={"model": "m"})
raise SystemExit("last words")
"""


def test_lines__of_an_engine_process__arrive_with_level_message_and_fields() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], capture_output=True, timeout=60, check=False)

    awake, failed, last = (read_line(line) for line in done.stderr.splitlines())
    assert (awake.level, awake.message) == (logging.INFO, "a model is awake")
    assert awake.fields == {"model": "m", "took_s": 0.5, "engine_logger": "pdmux_actor.x"}
    assert (failed.level, failed.message, failed.fields["model"]) == (logging.ERROR, "loading a model failed", "m")
    assert "ValueError: no\nsuch file" in failed.fields["exception"]
    assert failed.text.startswith("ERROR pdmux_actor.x: loading a model failed\nTraceback")
    assert (last.level, last.text) == (logging.WARNING, "last words")


@pytest.mark.parametrize("line", ["", "{", '{"time":1}', json.dumps({"time": "t", "level": "INFO"}), "\xff"])
def test_line__that_is_no_record__is_a_warning_with_its_text(line: str) -> None:
    said = read_line(line.encode("latin-1"))

    assert (said.level, said.message) == (logging.WARNING, "the engine process writes")
    assert said.fields["line"] == said.text


WARNER = """
import warnings
from pdmux_actor.serving.engine_log import log_to_actor
log_to_actor()
warnings.warn("torch.backends.cuda.preferred_blas_library is an experimental feature. If you see any error")
warnings.warn("something else")
"""


def test_warnings__of_libraries__are_one_record_each_and_what_is_expected_of_torch_is_no_warning() -> None:
    done = subprocess.run([sys.executable, "-c", WARNER], capture_output=True, timeout=60, check=False)

    expected, other = (read_line(line) for line in done.stderr.splitlines())
    assert (expected.level, other.level) == (logging.INFO, logging.WARNING)
    assert "experimental feature" in expected.message
    assert "something else" in other.message


def test_line__that_torch_writes_where_products_are_told_their_sms__is_no_warning() -> None:
    line = (
        "[W1127 18:53:33.712842345 Context.cpp:688] Warning: Setting the SM carveout for matmuls is a temporary"
        " experimental mitigation for performance issues, while more robust solutions are developed."
    )

    said = read_line(line.encode())

    assert (said.level, said.text) == (logging.INFO, line)
    assert read_line(b"[W1127 18:53:33.7 Context.cpp:688] Warning: cuBLAS is lost").level == logging.WARNING
