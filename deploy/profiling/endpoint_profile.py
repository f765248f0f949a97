"""Profiles from what clients of a running endpoint see: an engine elsewhere, of whoever made it."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from deploy.errors import OptionNotUsable
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import FleetFile, PoolSection
from deploy.planning.pool_hardware import hardware_of
from profiler.profile import ModelProfile, Profile
from profiler.rate_fit import FEWEST_OF_A_PHASE, RateFit, fit_rates, is_enough
from profiler.served_steps import Rung, SeenLaunch, ServedSteps, rungs_within
from profiler.specs import ModelSpec
from traces.outcome import Ending, RequestOutcome
from traces.replay import replay

_OPTION = "--from-run"
_REQUEST_TIMEOUT_S = 120.0
_LEAST_PART = 1e-3  # of the budget that a rung is taken to take: a clock that stands still ends, too
_FEWEST_TIMINGS = 2  # of a launch, of which the lower quartile counts
_WARM_UP = Rung(clients=1, prompt_tokens=64, output_tokens=8)

SendRung = Callable[[Rung], Sequence[RequestOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointModel:
    """A model of a fleet file, on the pool whose hardware the endpoint runs on."""

    name: str
    spec: ModelSpec
    pool: PoolSection
    fleet: FleetFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRun:
    """`before` is what the pool's device was taken for without the run."""

    model: EndpointModel
    launches: tuple[SeenLaunch, ...]
    before: RateFit
    after: RateFit
    num_gpus: int

    @property
    def held_out(self) -> tuple[SeenLaunch, ...]:
        return tuple(seen for seen in self.launches if seen.is_held_out)

    @property
    def is_seen_once(self) -> bool:
        """Says whether most launches have one timing: what disturbed an engine then counts as its own time."""
        return statistics.median(len(seen.timings_s) for seen in self.launches) < _FEWEST_TIMINGS

    def errors(self) -> tuple[float, float]:
        """Returns the mean error on held-out launches before and after; on all where none was held out."""
        judged = self.held_out or self.launches
        before, after = (f.mean_error(self.model.spec, self.num_gpus, judged) for f in (self.before, self.after))
        return before, after

    def profile(self, url: str) -> Profile:
        rows = tuple(seen.without(self.after.beside_s(seen)) for seen in self.launches)
        return Profile(
            engine=f"seen through {url}",
            device=self.after.device,
            num_gpus=self.num_gpus,
            machine={"gpu": self.after.device.name, "source": "requests of one client, fitted"},
            models={self.model.name: ModelProfile(spec=self.model.spec, measurements=rows)},
            host_s=self.after.host_s,
        )


def served_model(fleet: FleetFile, pool_name: str | None, model_name: str | None) -> EndpointModel:
    """Returns the model to ask for and the pool that the endpoint runs on; by default the only model, the first pool.

    Raises:
        OptionNotUsable: no such model or pool, or which model is not said.
        SourceNotFound, UnsupportedModel: its config.json cannot be used.
    """
    named = {m.id: m for m in fleet.models if m.base is None}
    if model_name is None and len(named) > 1:
        raise OptionNotUsable(option="--model", value="none", remedy=f"name one of {', '.join(named)}")
    chosen = next(iter(named.values())) if model_name is None else named.get(model_name)
    if chosen is None:
        raise OptionNotUsable(option="--model", value=model_name, remedy=f"the fleet file has {', '.join(named)}")
    pools = [p for p in fleet.pools if pool_name in (None, p.name)]
    if not pools:
        names = ", ".join(p.name for p in fleet.pools)
        raise OptionNotUsable(option="--pool", value=pool_name, remedy=f"the fleet file has {names}")
    spec = read_model_spec(
        chosen.id, chosen.source, chosen.revision, chosen.dtype or fleet.engine.dtype, chosen.weights
    )
    return EndpointModel(name=chosen.id, spec=spec, pool=pools[0], fleet=fleet)


def fit_endpoint(
    model: EndpointModel, send: SendRung, *, budget_s: float, now: Callable[[], float] = time.perf_counter
) -> FittedRun:
    """Sends rungs, round by round, until the budget is spent, and fits what they showed. A rung is not begun that would
    end after it.

    Raises:
        OptionNotUsable: the endpoint refuses the requests, or too few of them were answered as they should.
    """
    hardware = hardware_of(model.pool.model_copy(update={"profile": None}))
    steps = ServedSteps(hardware.device.num_sms)
    engine = model.fleet.engine
    rungs = rungs_within(
        batch_tokens=engine.max_batch_tokens,
        sequences=engine.max_running_sequences,
        sequence_tokens=model.spec.context_tokens(None),
    )
    _check(send(_WARM_UP))
    started_s, took_s = now(), dict.fromkeys(rungs, 0.0)
    while True:
        fitting = [rung for rung in rungs if now() - started_s + took_s[rung] < budget_s]
        if not fitting:
            break
        for rung in fitting:
            begun_s = now()
            if begun_s - started_s + took_s[rung] < budget_s:
                steps.add(rung, send(rung))
                took_s[rung] = max(now() - begun_s, budget_s * _LEAST_PART)
    launches = steps.launches()
    if not is_enough(launches):
        remedy = (
            f"of {len(launches)} kinds of launches fewer than {FEWEST_OF_A_PHASE} of a phase ran as they should; "
            "leave the endpoint to this run alone, or give a larger --budget"
        )
        raise OptionNotUsable(option=_OPTION, value=model.name, remedy=remedy)
    before = RateFit(device=hardware.device, host_s=hardware.host_s, client_s=0.0)
    after = fit_rates(model.spec, hardware.device, hardware.num_gpus, launches, host_s=hardware.host_s)
    return FittedRun(model=model, launches=launches, before=before, after=after, num_gpus=hardware.num_gpus)


@dataclass(slots=True, kw_only=True)
class EndpointClient:
    """Sends rungs to an OpenAI-compatible endpoint."""

    url: str
    model: str
    api_key: str | None = None
    transport: httpx.AsyncBaseTransport | None = None
    _sent: int = field(default=0, init=False)

    def __call__(self, rung: Rung) -> Sequence[RequestOutcome]:
        """Every prompt is new, so that no engine has its prefix."""
        self._sent += 1
        return asyncio.run(
            replay(
                rung.records(self.model),
                url=self.url,
                timeout_s=_REQUEST_TIMEOUT_S,
                api_key=self.api_key,
                seed=self._sent,
                transport=self.transport,
            )
        )


def _check(outcomes: Sequence[RequestOutcome]) -> None:
    for outcome in outcomes:
        if outcome.ending is not Ending.FINISHED:
            remedy = f"a first request was not answered ({outcome.error}); give the URL of an endpoint that serves it"
            raise OptionNotUsable(option=_OPTION, value=outcome.model, remedy=remedy)
