"""What serves a benchmark's requests: the real engine on this machine's cores, or the same deciding in virtual time."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.engine_session import EngineSession
from engines.measured_steps import MeasuredSteps, ModelledSteps, measure_steps
from engines.solo_steps import SoloSteps, StepTimes
from engines.virtual_session import VirtualSession
from report.machine_facts import machine_facts

from pdmux_actor.executor.lanes import PinnedThreads
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.specs import DeviceSpec, ModelSpec

Session = EngineSession | VirtualSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`times` of launches alone, which targets and budgets are made of; `steps` are set for virtual time.

    Real sessions share `threads`, as long as one serves at a time: with threads of its own for each session all teams
    of the process would sleep between two products (`PinnedThreads`), which a unit's one engine never has them do.
    None: each has its own.
    """

    device: DeviceSpec
    times: StepTimes
    steps: MeasuredSteps | None
    threads: PinnedThreads | None

    def facts(self) -> dict[str, object]:
        time = "real" if self.steps is None else "virtual, from step times measured on this machine"
        return machine_facts(self.device, time=time)

    @property
    def prefill_s_per_token(self) -> float:
        return self.times.prefill_s(256) / 256

    def session(
        self,
        checkpoints: Mapping[str, Path],
        policy: str,
        settings: SchedulerSettings,
        **others: Any,  # noqa: ANN401
    ) -> Session:
        """`others` are what both kinds of sessions take."""
        if self.steps is not None:
            return VirtualSession(checkpoints=checkpoints, policy=policy, settings=settings, steps=self.steps, **others)
        return EngineSession(
            checkpoints=checkpoints,
            policy=policy,
            settings=settings,
            device=self.device,
            threads=self.threads,
            **others,
        )


@contextmanager
def measured_machine(checkpoint: Path, *, virtual: bool = False, steps_file: Path | None = None) -> Iterator[Machine]:
    """In virtual time nothing is measured if `steps_file` exists, and the measurement is kept in it if not."""
    threads = PinnedThreads()
    if not virtual:
        solo = SoloSteps(checkpoint, threads)
        try:
            yield Machine(device=solo.device, times=solo, steps=None, threads=threads)
        finally:
            solo.close()
            threads.close()
        return
    if steps_file is not None and steps_file.exists():
        steps = MeasuredSteps.read(steps_file)
    else:
        solo = SoloSteps(checkpoint, threads)
        try:
            steps = measure_steps(solo)
        finally:
            solo.close()
            threads.close()
        if steps_file is not None:
            steps.write(steps_file)
    spec = ModelSpec.from_config(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
    times = ModelledSteps(steps.latency, spec, steps.device.num_sms)
    yield Machine(device=steps.device, times=times, steps=steps, threads=threads)
