"""Defines what is asked of each model."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.target_mix import OWN_TARGETS, TargetMix, mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """`prompt_tokens` and `output_tokens` are means over requests. `arrival_cv`: coefficient of variation of the gaps
    between requests; 1 is Poisson, bursts are more. `targets`: which ones requests name instead of the model's own.
    """

    model: str
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    arrival_cv: float = 1.0
    targets: TargetMix = field(default=OWN_TARGETS, repr=False)

    @property
    def tokens_per_request(self) -> float:
        return self.prompt_tokens + self.output_tokens


def together(model: str, demands: Sequence[ModelDemand]) -> ModelDemand:
    """Adds up demands, as that of one model.

    >>> one = ModelDemand(model="a", rate_per_s=1.0, prompt_tokens=100, output_tokens=10)
    >>> other = ModelDemand(model="b", rate_per_s=3.0, prompt_tokens=20, output_tokens=50)
    >>> together("a", [one, other])
    ModelDemand(model='a', rate_per_s=4.0, prompt_tokens=40.0, output_tokens=40.0, arrival_cv=1.0)
    """
    rate_per_s = sum(d.rate_per_s for d in demands)
    weights = [d.rate_per_s / rate_per_s if rate_per_s else 1 / len(demands) for d in demands]
    return ModelDemand(
        model=model,
        rate_per_s=rate_per_s,
        prompt_tokens=sum(w * d.prompt_tokens for w, d in zip(weights, demands, strict=True)),
        output_tokens=sum(w * d.output_tokens for w, d in zip(weights, demands, strict=True)),
        arrival_cv=max(d.arrival_cv for d in demands),
        targets=mixed((w, d.targets) for w, d in zip(weights, demands, strict=True)),
    )
