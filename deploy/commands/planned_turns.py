"""Tells which models of a plan have no place of their own and take turns, where, and what waits that means."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass

from deploy.commands.plan_screen import in_gib
from deploy.control.control_rules import ControlRules
from deploy.control.model_turns import turn_length_s
from deploy.planning.fleet_planning import PlannedFleet
from placement.estimation.memory import holds_weights
from placement.problem import PlacementModel

_READ_BYTES_PER_S = 2e9  # a fast local disk, as the cost of moves has it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A model that may be scaled to zero and has no place. `units` have room for it once those `with_models` leave that
    take turns there (none of these: there is room, or others can spare replicas); no units: it is never loaded.
    `load_s` at the least. While all are asked for all the time each has its place for `turn_s`, and streams as much
    again; all have had it after `round_s`.
    """

    model: str
    units: tuple[str, ...]
    with_models: tuple[str, ...]
    weight_bytes: int
    load_s: float
    turn_s: float
    round_s: float
    hold_s: float

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "refused_share": self.refused_share}

    @property
    def refused_share(self) -> float:
        """Returns the share of its requests that wait for longer than `hold_s`, if all are in use all the time."""
        return max(0.0, 1 - (self.hold_s + self.turn_s) / max(self.round_s, self.hold_s + self.turn_s))

    def told(self) -> str:
        if not self.units:
            return (
                f"{self.model} is never loaded: it has no place, and none that takes turns leaves it room enough; give "
                "those that have places replicas.min: 0, or the pools more memory or nodes"
            )
        load = f"at least {self.load_s:.1f} s to read {in_gib(self.weight_bytes)}"
        waits = f"at most gateway.hold_s ({self.hold_s:g} s)"
        if self.refused_share > 0:
            waits = (
                f"a round of all takes {self.round_s:.0f} s, so that some {self.refused_share:.0%} of its requests are "
                f"refused after gateway.hold_s ({self.hold_s:g} s); raise that, or the pools' memory"
            )
        if not self.with_models:
            return (
                f"{self.model} has no place until it is asked for; then it is loaded on {', '.join(self.units)}, where "
                f"there is room or replicas that others can spare make it: a request waits for its load ({load}; units "
                f"measure theirs), {waits}"
            )
        return (
            f"{self.model} takes turns with {', '.join(self.with_models)} on {', '.join(self.units)}: a request waits "
            f"for its load where these are idle ({load}; units measure theirs), else for a turn of {self.turn_s:.1f} s "
            f"and a load, {waits}"
        )


def planned_turns(planned: PlannedFleet, hold_s: float) -> tuple[PlannedTurn, ...]:
    """Returns one for each model that has to wait for a place. What units could never hold is `unplaced`."""
    by_name, placed = {m.model: m for m in planned.models}, planned.plan.placed
    guests = {name for name in placed if by_name[name].min_replicas == 0}
    late = [m for m in planned.models if m.model in planned.without_place]
    loads_s = [by_name[name].spec.weight_bytes / _READ_BYTES_PER_S for name in (*guests, *(m.model for m in late))]
    load_s = sum(loads_s) / max(1, len(loads_s))
    turn_s = turn_length_s(len(late), len(guests), ControlRules(hold_s=hold_s), load_s)
    round_s = (load_s + 2 * turn_s) * (len(late) + len(guests)) / max(1, len(guests))
    found = []
    for model in late:
        homes = [*_homes(planned, model, by_name, guests)]
        found.append(
            PlannedTurn(
                model=model.model,
                units=tuple(unit for unit, _ in homes),
                with_models=tuple(sorted({name for _, gone in homes for name in gone})),
                weight_bytes=model.spec.weight_bytes,
                load_s=model.spec.weight_bytes / _READ_BYTES_PER_S,
                turn_s=turn_s,
                round_s=round_s,
                hold_s=hold_s,
            )
        )
    return tuple(found)


def _homes(
    planned: PlannedFleet, model: PlacementModel, by_name: Mapping[str, PlacementModel], guests: Set[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields units with room for a model beside those that stay there, and those that may leave."""
    for unit in planned.units:
        there = [p.model for p in planned.plan.models_of(unit.unit_id)]
        spare = {n for n in there if len(planned.plan.units_of(n)) > max(1, by_name[n].min_replicas)}
        stays = [by_name[name] for name in there if name not in guests | spare]
        if holds_weights(unit, [*stays, model]):
            yield unit.unit_id, tuple(name for name in there if name in guests)
