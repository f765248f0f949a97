"""Counts LoRA adapters with their bases, where models are planned for that no unit holds yet."""

from collections.abc import Sequence

from deploy.fleet_file.model_section import DemandSection, ModelSection, SloSection


def with_adapters_folded(models: Sequence[ModelSection]) -> tuple[ModelSection, ...]:
    """Returns the bases: each with what is asked of its adapters, too, and the tightest targets of them all."""
    return tuple(_folded(m, [a for a in models if a.base == m.id]) for m in models if m.base is None)


def _folded(base: ModelSection, adapters: Sequence[ModelSection]) -> ModelSection:
    if not adapters:
        return base
    family = [base, *adapters]
    demands = [m.demand for m in family]
    rate_per_s = sum(d.rate_per_s for d in demands)
    weights = [d.rate_per_s / rate_per_s if rate_per_s else 1 / len(demands) for d in demands]
    demand = DemandSection(
        rate_per_s=rate_per_s,
        prompt_tokens=max(1, round(sum(w * d.prompt_tokens for w, d in zip(weights, demands, strict=True)))),
        output_tokens=max(1, round(sum(w * d.output_tokens for w, d in zip(weights, demands, strict=True)))),
        arrival_cv=max(d.arrival_cv for d in demands),
    )
    slo = SloSection(ttft_s=min(m.slo.ttft_s for m in family), tbt_s=min(m.slo.tbt_s for m in family))
    # One that must be there keeps its base there.
    least = max(base.replicas.min, min(1, max(m.replicas.min for m in adapters)))
    replicas = base.replicas.model_copy(update={"min": least})
    return base.model_copy(update={"demand": demand, "slo": slo, "replicas": replicas})
