"""One run in several processes, each with a part of the fleet that shares no unit with the others.

What happens at one model's units reaches another model through a unit that has both, or through others that lie
between them, and in no other way: gateways keep their books by model, and what waits there apart for models that share
no unit (`router/admission/rival_queues.py`). So parts find what the whole fleet would have found.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from deploy.simulation.deployments import DeployedFleet
from deploy.simulation.fleet_outcome import FleetOutcome
from deploy.simulation.runs import OnProgress, RunOptions, run_fleet
from deploy.simulation.streams import RequestStream
from deploy.simulation.workers import Tell, Workers
from router.admission.rival_queues import rival_models

# Several for each process: small ones go faster, and the last ones even out what the first ones took. But each reads
# the whole stream.
_PARTS_PER_JOB = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProgress:
    part: int
    ended: int
    virtual_s: float


def run_fleet_divided(
    deployed: DeployedFleet,
    stream: RequestStream,
    options: RunOptions,
    *,
    jobs: int,
    on_progress: OnProgress | None = None,
    on_interrupt: Callable[[FleetOutcome], None] | None = None,
) -> FleetOutcome:
    """Finds what `run_fleet` finds, with up to `jobs` processes where the fleet and the stream can be divided; what
    those have found so far is not known where it is interrupted.
    """
    parts = _parts(deployed, stream, options, jobs * _PARTS_PER_JOB) if jobs > 1 else ()
    if len(parts) > 1:
        return _joined(_run_parts(parts, stream, options, jobs, on_progress), deployed, stream)
    return run_fleet(deployed, stream, options, on_progress=on_progress, on_interrupt=on_interrupt)


def _parts(deployed: DeployedFleet, stream: RequestStream, options: RunOptions, most: int) -> Sequence[DeployedFleet]:
    """The largest first, by their requests. None where prompts may share blocks (gateways remember a bounded number of
    all models' prefixes), or where the run's end or its samples are the fleet's as a whole.
    """
    if stream.block_tokens is not None or options.window_s is not None or options.sample_partitions:
        return ()
    alone = (frozenset((m.model,)) for m in deployed.models)  # also those that no unit has
    placed = (frozenset(m.info.model for m in design.models) for _, design in deployed.designs)
    groups = rival_models([*alone, *placed]) if deployed.designs else []
    asked = Counter(record.model or "" for record in stream.records()) if len(groups) > 1 else Counter[str]()
    parts: list[set[str]] = [set() for _ in range(min(most, len(groups)))]
    work = [0] * len(parts)
    for group in sorted(groups, key=lambda g: (-sum(asked[m] for m in g), min(g))):
        least = work.index(min(work))
        parts[least] |= group
        work[least] += sum(asked[m] for m in group)
    return [deployed.part(models) for _, models in sorted(zip(work, parts, strict=True), key=lambda p: -p[0])]


def _run_parts(
    parts: Sequence[DeployedFleet],
    stream: RequestStream,
    options: RunOptions,
    jobs: int,
    on_progress: OnProgress | None,
) -> Sequence[FleetOutcome]:
    last = [PartProgress(part=number, ended=0, virtual_s=0.0) for number in range(len(parts))]

    def hear(progress: PartProgress) -> None:
        last[progress.part] = progress
        if on_progress is not None:
            on_progress(sum(p.ended for p in last), min(p.virtual_s for p in last))

    with Workers(jobs, hear) as workers:
        tasks = [workers.submit(partial(_run_part, n, part, stream, options)) for n, part in enumerate(parts)]
        return [task.result() for task in tasks]


def _run_part(
    number: int, part: DeployedFleet, stream: RequestStream, options: RunOptions, tell: Tell[PartProgress]
) -> FleetOutcome:
    def progressed(ended: int, now_s: float) -> None:
        tell(PartProgress(part=number, ended=ended, virtual_s=now_s))

    return run_fleet(part, stream, options, on_progress=progressed)


def _joined(outcomes: Sequence[FleetOutcome], deployed: DeployedFleet, stream: RequestStream) -> FleetOutcome:
    """Arrivals and views are events of every part, and of the fleet once."""
    statistics = {model: of_model for outcome in outcomes for model, of_model in outcome.models.items()}
    own_events = sum(outcome.events - outcome.views - stream.count for outcome in outcomes)
    views = max(outcome.views for outcome in outcomes)
    return FleetOutcome(
        models={m.model: statistics[m.model] for m in deployed.models},
        duration_s=max(outcome.duration_s for outcome in outcomes),
        ended_s=max(outcome.ended_s for outcome in outcomes),
        events=own_events + views + stream.count,
        views=views,
        steps=sum(outcome.steps for outcome in outcomes),
        gave_up=False,
    )
