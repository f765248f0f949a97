"""Runs the rates that a sweep may ask for next, while it waits for the one that it asks for."""

from collections.abc import Callable, Iterable
from functools import partial

from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.workers import Message, Task, Tell, Workers


class RatesAhead:
    """Runs rates for a sweep, which asks for one after the other and goes on by what it finds. The outcomes are those
    of running them so; some that were begun are thrown away.
    """

    def __init__(self, workers: Workers[Message], run: Callable[[float, Tell[Message]], FleetOutcome]) -> None:
        self._workers = workers
        self._run = run
        self._tasks: dict[float, Task[Message, FleetOutcome]] = {}

    def want(self, rates_per_s: Iterable[float]) -> None:
        """These may be asked for next, the likeliest first; no others."""
        wanted = list(rates_per_s)[: self._workers.jobs]
        for rate_per_s in [rate for rate in self._tasks if rate not in wanted]:
            self._tasks.pop(rate_per_s).drop()
        for rate_per_s in wanted:
            if rate_per_s not in self._tasks:
                self._tasks[rate_per_s] = self._workers.submit(partial(self._run, rate_per_s))

    def outcome(self, rate_per_s: float) -> FleetOutcome:
        self.want([rate_per_s, *self._tasks])
        return self._tasks.pop(rate_per_s).result()
