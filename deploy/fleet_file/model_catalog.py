"""Defines what the fleet shall serve, as the control loop holds it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deploy.fleet_file.model_section import ModelSection
from pdmux_actor.lease import ModelAssignment, WeightsOrigin
from pdmux_actor.messages import Slo
from placement.demand import ModelDemand
from placement.problem import PlacementModel
from profiler.specs import ModelSpec
from router.view import ModelCard
from traces.timeliness import SloTarget


def expected_demand(model: ModelSection) -> ModelDemand:
    """Returns what the fleet file says will be asked of a model."""
    demand = model.demand
    return ModelDemand(
        model=model.id,
        rate_per_s=demand.rate_per_s,
        prompt_tokens=demand.prompt_tokens,
        output_tokens=demand.output_tokens,
        arrival_cv=demand.arrival_cv,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """`spec` is None while the checkpoint's shape is unknown; `problem` says why. `base`: of an adapter, which is
    placed with it and has no spec; `adapters_bytes`: of a base, what its adapters take beside it.
    """

    settings: ModelSection
    dtype: str | None
    created_s: int
    spec: ModelSpec | None
    problem: str | None = None
    base: ModelSection | None = None
    adapters_bytes: int = 0

    @property
    def id(self) -> str:
        return self.settings.id

    @property
    def slo(self) -> Slo:
        return Slo(ttft_s=self.settings.slo.ttft_s, tbt_s=self.settings.slo.tbt_s)

    def card(self) -> ModelCard:
        """Returns what gateways are told. An adapter has its base's tokenizer."""
        text = self.base or self.settings
        base = None if self.base is None else _origin(self.base, self.base.dtype or self.dtype)
        return ModelCard(
            model=self.id,
            source=text.source,
            revision=text.revision,
            adapter_of=None if self.base is None else self.base.id,
            slo=self.slo,
            created_s=self.created_s,
            can_wake=self.settings.replicas.min == 0,
            weights=_origin(self.settings, self.dtype).name(base),
        )

    def assignment(self, quota_blocks: int) -> ModelAssignment:
        return ModelAssignment(
            model=self.id,
            source=self.settings.source,
            quota_blocks=quota_blocks,
            slo=self.slo,
            revision=self.settings.revision,
            dtype=self.dtype,
            weights=self.settings.weights,
            max_model_len=self.settings.max_model_len,
            base=self.settings.base,
        )

    def prior(self) -> ModelDemand:
        """Returns what is expected before there is traffic."""
        return expected_demand(self.settings)

    def placement(self, demand: ModelDemand | None = None) -> PlacementModel | None:
        """Returns the model as the planner sees it, with `demand` or else with what is expected. None if the model
        cannot be planned for yet.
        """
        if self.spec is None:
            return None
        return PlacementModel(
            model=self.id,
            spec=self.spec,
            demand=demand or self.prior(),
            slo=SloTarget(ttft_s=self.slo.ttft_s, tbt_s=self.slo.tbt_s),
            min_replicas=self.settings.replicas.min,
            max_replicas=self.settings.replicas.max,
            max_model_len=self.spec.context_tokens(self.settings.max_model_len),
            adapters_bytes=self.adapters_bytes,
        )


def _origin(model: ModelSection, dtype: str | None) -> WeightsOrigin:
    return WeightsOrigin(
        source=model.source,
        revision=model.revision,
        dtype=dtype,
        weights=model.weights,
        max_model_len=model.max_model_len,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """`placed` are all but adapters, which are wherever their base is."""

    models: tuple[CatalogModel, ...]
    policy: str
    placed: tuple[CatalogModel, ...] = field(init=False, repr=False, compare=False)
    _by_id: Mapping[str, CatalogModel] = field(init=False, repr=False, compare=False)
    _adapters: Mapping[str, tuple[CatalogModel, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every heartbeat of every unit asks for several models.
        adapters: dict[str, tuple[CatalogModel, ...]] = {}
        for model in self.models:
            if model.base is not None:
                adapters[model.base.id] = (*adapters.get(model.base.id, ()), model)
        object.__setattr__(self, "placed", tuple(m for m in self.models if m.base is None))
        object.__setattr__(self, "_by_id", {m.id: m for m in self.models})
        object.__setattr__(self, "_adapters", adapters)

    def places(self, model: str) -> bool:
        known = self._by_id.get(model)
        return known is not None and known.base is None

    def place_of(self, model: str) -> str:
        """Names what is placed for a model: of an adapter the base."""
        known = self._by_id.get(model)
        return model if known is None or known.base is None else known.base.id

    def adapters_of(self, base: str) -> tuple[CatalogModel, ...]:
        return self._adapters.get(base, ())

    def changed_since(self, before: "Catalog") -> Iterator[str]:
        """Yields models that are placed and have, or whose adapters have, other settings than before, or are new."""
        known = {m.id: m.settings for m in before.models}
        yield from (self.place_of(m.id) for m in self.models if known.get(m.id) != m.settings)

    def get(self, model: str) -> CatalogModel | None:
        return self._by_id.get(model)
