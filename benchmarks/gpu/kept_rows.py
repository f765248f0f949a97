"""A benchmark's rows, in its file from the moment each is measured: a run that is killed loses the row it was at."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from report.command import Row, write_report
from report.machine_facts import machine_facts

from pdmux_actor.errors import DeviceUnavailable
from profiler.machine import gpu_facts
from profiler.specs import DeviceSpec

_LOG = logging.getLogger(__name__)


class KeptRows:
    """`path` None keeps them in memory only. `resume` begins with what the file holds, so that only the rest is run."""

    def __init__(self, path: Path | None, key: Sequence[str], *, resume: bool = False, limit_s: float = 1e9) -> None:
        """`key`: the fields that tell rows apart. `limit_s`: no row is begun later than that."""
        self._path = path
        self._key = tuple(key)
        self._started_s = time.perf_counter()
        self._limit_s = limit_s
        self.rows: list[Row] = []
        self.facts: dict[str, Any] = {}
        self.failures: dict[str, str] = {}  # of this run
        if resume and path is not None and path.exists():
            kept = json.loads(path.read_text())
            self.rows, self.facts = kept["rows"], kept["machine"]

    def wants(self, **key: object) -> bool:
        """Whether a row is missing and there is time for it."""
        assert set(key) == set(self._key), f"rows are told apart by {self._key}"
        is_kept = any(all(row[name] == value for name, value in key.items()) for row in self.rows)
        return not is_kept and time.perf_counter() - self._started_s < self._limit_s

    def attempt(self, key: Row, measure: Callable[[], Row]) -> None:
        """Adds what `measure` gives, if it is wanted. A measurement that fails costs no other its row.

        Raises DeviceUnavailable: there is no GPU to measure anything on.
        """
        if not self.wants(**key):
            return
        try:
            self.add({**key, **measure()})
        except DeviceUnavailable:
            raise
        except Exception as error:
            name = " ".join(map(str, key.values()))
            _LOG.exception("%s could not be measured", name)
            self.failures[name] = f"{type(error).__name__}: {error}"[:500]
            self.note({"failures": self.failures})

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write()

    def note(self, facts: Mapping[str, Any]) -> None:
        self.facts.update(facts)
        self._write()

    def note_gpu(self, device: DeviceSpec, chosen: Mapping[str, str]) -> None:
        """`chosen`: how it is partitioned, and what else was chosen for it."""
        facts = {**machine_facts(device), "gpu": device.name, **gpu_facts()}
        self.note({**facts, **chosen})

    def _write(self) -> None:
        write_report(self._path, self.facts, self.rows)
