"""Makes the requests that a simulation is asked for: those of a trace, or of the fleet file's demand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.commands.simulation_screen import stream_lines
from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_catalog import expected_demand
from deploy.fleet_file.model_specs import with_adapters_folded
from deploy.fleet_file.settings import FleetFile
from deploy.simulation.streams import RequestStream, demand_stream, trace_stream
from placement.demand import ModelDemand

_DEMAND_S = 120.0
_MAX_GENERATED = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRequests:
    """Holds what the options say of them. `swept_per_s` are the rates of a sweep, none where there is none."""

    trace: Path | None
    requests: int | None
    duration_s: float | None
    rate_per_s: float | None
    swept_per_s: Sequence[float]
    spread_ticks: bool
    seed: int

    def stream(self, fleet: FleetFile) -> RequestStream:
        """Returns them, those for an adapter as its base's. Raises OptionNotUsable: the demand is none, or more than
        can be generated at one of the rates.
        """
        if self.trace is None:
            return self._of_demand(_demands(fleet), max(self.swept_per_s, default=None))
        weights = {m.id: m.demand.rate_per_s for m in with_adapters_folded(fleet.models)}
        whole = trace_stream(
            self.trace,
            weights,
            seed=self.seed,
            spread_ticks=self.spread_ticks,
            rate_per_s=self.rate_per_s,
            untimed_per_s=next(iter(self.swept_per_s), None),
            bases={m.id: m.base for m in fleet.models if m.base is not None},
        )
        return whole.first(self.requests, self.duration_s)

    def swept(self, fleet: FleetFile, stream: RequestStream, rate_per_s: float) -> RequestStream:
        """Returns what comes at a rate of the sweep: a trace's requests, faster or slower; of the demand as many as
        come at that rate within the duration, since those of a low rate are over too soon at a high one for a queue to
        show.
        """
        if self.trace is not None:
            return stream.at_rate(rate_per_s)
        return replace(self, rate_per_s=rate_per_s)._of_demand(_demands(fleet), None)

    def told(self, stream: RequestStream) -> Iterator[str]:
        """Says which requests come."""
        if self.trace is None and self.swept_per_s:
            yield f"{self.duration_s or _DEMAND_S:g} s of {stream.name} at each rate"
        else:
            yield from stream_lines(stream)

    def _of_demand(self, demands: list[ModelDemand], highest_per_s: float | None) -> RequestStream:
        expected_per_s = sum(d.rate_per_s for d in demands)
        rate_per_s = self.rate_per_s or expected_per_s
        duration_s = self.duration_s or _DEMAND_S
        expected = duration_s * (highest_per_s or rate_per_s)
        if expected > _MAX_GENERATED:
            remedy = f"that is {expected:.2g} requests, {_MAX_GENERATED:,} at most; shorten it, or ask for a lower rate"
            raise OptionNotUsable(option="--duration", value=f"{duration_s:g}", remedy=remedy)
        demands = [replace(d, rate_per_s=d.rate_per_s * rate_per_s / expected_per_s) for d in demands]
        return demand_stream(demands, duration_s=duration_s, seed=self.seed).first(self.requests, None)


def _demands(fleet: FleetFile) -> list[ModelDemand]:
    """Raises OptionNotUsable: nobody is expected."""
    demands = [expected_demand(m) for m in with_adapters_folded(fleet.models)]
    if not any(d.rate_per_s for d in demands):
        remedy = "no model of the fleet file has demand.rate_per_s above 0; raise one, or give a trace"
        raise OptionNotUsable(option="--trace", value="(none)", remedy=remedy)
    return demands
