"""Counts the launches for which simulated units that run ahead needed no wake."""

import pytest

from pdmux_actor.scheduling.scheduler import Scheduler


def launches_ahead(monkeypatch: pytest.MonkeyPatch, *, only_while_prompts_wait: bool = False) -> list[int]:
    """Returns what each call that runs ahead from now on adds to: 0 where it did not."""
    taken: list[int] = []
    run_on = Scheduler.run_on

    def counted(self, world, until_s):
        waits = any(queue.waiting for queue in self._queues.values())
        ahead = run_on(self, world, until_s)
        if waits or not only_while_prompts_wait:
            taken.append(0 if ahead is None else ahead.num_launches)
        return ahead

    monkeypatch.setattr(Scheduler, "run_on", counted)
    return taken
