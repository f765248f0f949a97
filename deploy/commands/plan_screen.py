"""Plans for people and, as JSON, for scripts."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from deploy.commands.fitted_table import FittedTable
from deploy.fleet_file.model_section import ModelSection
from deploy.planning.fleet_planning import EnoughUnits, PlannedFleet
from placement.estimation.plan_estimate import FleetEstimate, UnitEstimate
from placement.estimation.refusal import refusal
from placement.plan import ModelPlacement, UnitCapacity
from placement.plan_steps import DrainModelStep, LoadModelStep, MoveCost, SetQuotasStep, Step
from placement.problem import PlacementModel
from placement.scaling.elastic_pool import FleetSize

_UNBOUNDED = 1e3  # a headroom beyond this says only that there is hardly any load
_MOST_LACKING = 3
_ALL = 0.9995  # what is shown as 100.0 %


def estimate_table(planned: PlannedFleet, found: FleetEstimate) -> FittedTable:
    table = FittedTable(keys=2)
    for title in ("unit", "model", "GPUs", "weights", "KV quota", "tokens"):
        table.add_column(title, justify="left" if title in ("unit", "model") else "right")
    for title in ("load", "within SLO", "headroom", "limit", "decode SMs", "TBT p99"):
        table.add_column(title, justify="left" if title == "limit" else "right")
    models = {m.model: m for m in planned.models}
    attains = {m.model: m.meets_slo for m in found.models}
    for unit, figures in zip(planned.units, found.units, strict=True):
        placements = planned.plan.models_of(unit.unit_id)
        head = (unit.unit_id, str(unit.num_gpus))
        if not placements:
            table.add_row(head[0], "-", head[1], *("-",) * 9, style="dim")
        for placement in placements:
            cells = _quota_cells(unit, placement, models[placement.model])
            tail = _unit_cells(figures) if head[0] else ("",) * 4
            table.add_row(
                head[0], placement.model, head[1], *cells, *_load_cells(figures, placement.model, attains), *tail
            )
            head = ("", "")
    return table


def verdict(
    found: FleetEstimate, planned: PlannedFleet, *, bound_per_s: float, enough: EnoughUnits | None
) -> Iterator[str]:
    yield served_line(planned, found)
    worst = min((m for m in found.models if m.rate_per_s > 0), key=lambda m: m.served_share, default=None)
    if found.served_share < _ALL:
        yield f"no plan serves more than {max(0.0, bound_per_s):.2f} requests/s within SLO"
    if worst is not None and worst.served_share < _ALL:
        why = "" if worst.meets_slo else ": no unit of this fleet meets its SLO, however little is asked of it"
        if worst.model in planned.without_place:
            why = ": it has no place of its own; what is served by turns is not counted"
        yield f"worst: {worst.model} with {worst.served_share:.1%}{why}"
    if enough is not None:
        units = ", ".join(f"{n} of {pool}" for pool, n in sorted(enough.of_pools.items()))
        room = f" with headroom {headroom(enough.headroom)}" if enough.headroom < _UNBOUNDED else ""
        gpus = "1 GPU" if enough.num_gpus == 1 else f"{enough.num_gpus} GPUs"
        yield f"{gpus} would do for this demand{room}: {units}"


def why_units_are_empty(found: FleetEstimate, planned: PlannedFleet) -> Iterator[str]:
    """Says, where demand is left over, what keeps the models that lack most of it from the units without any. No unit
    helps a model of which none meets the SLO.
    """
    empty = [(u, ()) for u in planned.units if not planned.plan.models_of(u.unit_id)]
    helped = [m for m in found.models if m.meets_slo and m.model not in planned.plan.unplaced]
    lacking = [m for m in helped if m.served_share < _ALL]
    if not empty or not lacking:
        return
    by_name = {m.model: m for m in planned.models}
    stand = "1 unit stands" if len(empty) == 1 else f"{len(empty)} units stand"
    for figures in sorted(lacking, key=lambda m: m.served_share)[:_MOST_LACKING]:
        model = by_name[figures.model]
        if figures.replicas >= model.max_replicas:
            yield (
                f"{stand} empty: {model.model} may have {model.max_replicas} "
                f"replica{'' if model.max_replicas == 1 else 's'} at most; raise its replicas.max"
            )
        else:
            rule = "the solver found no plan that serves more with a replica there"
            yield f"{stand} empty: {model.model}: {refusal(model, empty, rule=rule)}"


def prompts_that_do_not_fit(models: Sequence[PlacementModel]) -> Iterator[str]:
    """The plan counts them, the gateways will refuse them."""
    for model in models:
        prompt_tokens = model.demand.prompt_tokens
        if model.demand.rate_per_s > 0 and prompt_tokens >= model.max_model_len:
            yield (
                f"{model.model}: a mean prompt of {prompt_tokens:.0f} tokens (demand.prompt_tokens) leaves no room in "
                f"max_model_len {model.max_model_len}, so most requests would be refused; raise one or lower the other"
            )


def lengths_beyond_the_checkpoint(asked: Sequence[ModelSection], models: Sequence[PlacementModel]) -> Iterator[str]:
    """Units serve what the checkpoint knows positions for, whatever the fleet file asks for."""
    served = {model.model: model.max_model_len for model in models}
    for model in asked:
        longest = served.get(model.id)
        if model.max_model_len is not None and longest is not None and longest < model.max_model_len:
            yield (
                f"{model.id}: max_model_len {model.max_model_len} is more than its checkpoint has positions for, so "
                f"sequences end at {longest} tokens; lower it, or scale rotary positions in its config.json"
            )


def served_line(planned: PlannedFleet, found: FleetEstimate) -> str:
    fullest = min((u for u in found.units if u.replicas), key=lambda u: u.headroom, default=None)
    room = ""
    if fullest is not None and fullest.headroom < _UNBOUNDED:
        room = f"; least headroom {headroom(fullest.headroom)} ({fullest.limit} on {fullest.unit_id})"
    return (
        f"serves {found.served_per_s:.2f} of {found.rate_per_s:.2f} requests/s within SLO ({found.served_share:.1%}) "
        f"on {found.gpus_used} of {planned.num_gpus} GPUs{room}"
    )


def size_line(size: FleetSize, num_models: int) -> str:
    if len(size.left_out) == num_models:
        return _hopeless(size)
    nodes = ", ".join(f"{count} of {pool}" for pool, count in size.nodes.items())
    told = f"{nodes} for {size.cost_per_hour:g} per hour: {size.attainment:.2%} of requests predicted in time"
    if size.left_out:
        told += f", without those of {', '.join(size.left_out)}. {_hopeless(size)}"
    if size.is_enough and size.is_cut:
        return f"enough nodes, found until --time-budget ended; there may be cheaper ones: {told}"
    if size.is_enough:
        return f"cheapest nodes: {told}"
    return (
        f"no number of nodes is enough; the best found: {told}. Raise --budget, --most-nodes, --time-budget or the "
        "replicas.max of models, or ask for less"
    )


def _hopeless(size: FleetSize) -> str:
    models = ", ".join(size.left_out)
    return f"No pool meets the SLO of {models} at any size: loosen its slo.ttft_s or slo.tbt_s, or add faster GPUs"


def steps_line(steps: Sequence[Step], cost: MoveCost) -> str:
    if not steps:
        return "nothing to do: the plan stands"
    interrupted = f"; not served meanwhile: {', '.join(cost.interrupted)}" if cost.interrupted else ""
    return (
        f"{cost.loads} loads ({cost.load_bytes / 2**30:.1f} GiB), {cost.drains} drains, at least {cost.seconds:.0f} s"
        f"{interrupted}"
    )


def steps_table(steps: Sequence[Step]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "step", "unit", "model", "quota"):
        table.add_column(title)
    for number, step in enumerate(steps, start=1):
        table.add_row(str(number), *_step_cells(step))
    return table


def plan_dict(
    planned: PlannedFleet,
    found: FleetEstimate,
    *,
    bound_per_s: float,
    steps: Sequence[Step],
    cost: MoveCost | None,
    size: FleetSize | None = None,
) -> dict[str, object]:
    return {
        "units": [
            {
                "unit": unit.unit_id,
                "pool": unit.pool,
                "node": unit.node,
                "gpus": unit.num_gpus,
                "total_blocks": unit.total_blocks,
                "models": {p.model: p.quota_blocks for p in planned.plan.models_of(unit.unit_id)},
                "load_per_s": {r.model: r.rate_per_s for r in figures.replicas},
                "served_per_s": {r.model: r.served_per_s for r in figures.replicas},
                "headroom": figures.headroom,
                "limit": str(figures.limit),
                "decode_sms": figures.decode_sms,
                "tbt_p99_s": figures.tbt_s,
                "kv_share": figures.kv_share,
                "weights_share": figures.weights_share,
            }
            for unit, figures in zip(planned.units, found.units, strict=True)
        ],
        "models": {
            m.model: {
                "rate_per_s": m.rate_per_s,
                "served_per_s": m.served_per_s,
                "slo_attainment": m.served_share,
                "replicas": m.replicas,
            }
            for m in found.models
        },
        "total": {
            "rate_per_s": found.rate_per_s,
            "served_per_s": found.served_per_s,
            "slo_attainment": found.served_share,
            "worst_share": found.worst_share,
            "gpus_used": found.gpus_used,
            "bound_per_s": bound_per_s,
        },
        "unplaced": dict(planned.plan.unplaced),
        "steps": [{"step": type(step).__name__.removesuffix("Step"), **asdict(step)} for step in steps],
        "move_cost": None if cost is None else asdict(cost),
        "size": None if size is None else asdict(size),
    }


def _quota_cells(unit: UnitCapacity, placement: ModelPlacement, model: PlacementModel) -> tuple[str, ...]:
    tokens = placement.quota_blocks * unit.block_bytes // model.spec.kv_bytes_per_token
    return (
        in_gib(model.spec.weight_bytes),
        f"{placement.quota_blocks / unit.total_blocks:.1%}",
        f"{tokens}",
    )


def _load_cells(figures: UnitEstimate, model: str, attains: dict[str, bool]) -> tuple[str, str]:
    replica = next(r for r in figures.replicas if r.model == model)
    share = replica.served_per_s / replica.rate_per_s if replica.rate_per_s > 0 else 1.0
    return f"{replica.rate_per_s:.2f}/s", f"{share:.1%}" if attains[model] else "never"


def _unit_cells(figures: UnitEstimate) -> tuple[str, ...]:
    return (
        headroom(figures.headroom),
        str(figures.limit) if figures.headroom < _UNBOUNDED else "",
        str(figures.decode_sms or "all, in turn"),
        "overloaded" if figures.tbt_s is None else f"{figures.tbt_s * 1000:.0f} ms",
    )


def in_gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def headroom(factor: float) -> str:
    return f"x{factor:.2f}" if factor < _UNBOUNDED else "any"


def _step_cells(step: Step) -> tuple[str, str, str, str]:
    match step:
        case SetQuotasStep(unit_id=unit_id, quota_blocks=quotas):
            return "set quotas", unit_id, ", ".join(quotas), ", ".join(str(q) for q in quotas.values())
        case LoadModelStep(unit_id=unit_id, model=model, quota_blocks=blocks, wake_s=wake_s):
            how = "load" if wake_s is None else "wake"
            return f"{how}, then shift traffic", unit_id, model, str(blocks)
        case DrainModelStep(unit_id=unit_id, model=model, interrupts=interrupts):
            return "drain and unload" + (" (its last replica)" if interrupts else ""), unit_id, model, ""
