"""Defines what is asked of each model: how often, of which lengths, and within which targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from traces.timeliness import SloTarget

TIGHTER_SHARE = 0.05  # of the requests may ask for tighter targets than the plan is made for
# May have the model's own or tighter ones where the plan is made for looser ones: batches beside a few chats.
OWN_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShare:
    """So large a share of a model's requests asks for this target, in seconds."""

    target_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMix:
    """Holds the targets that requests named, rising; requests that named none have the model's own."""

    ttft: tuple[TargetShare, ...] = ()
    tbt: tuple[TargetShare, ...] = ()

    def planned(self, own: SloTarget) -> SloTarget:
        """Returns tighter targets than the model's own where more than TIGHTER_SHARE of the requests ask for such,
        looser ones where no more than OWN_SHARE of them would miss their own.

        >>> tight = TargetMix(tbt=(TargetShare(target_s=0.02, share=0.2),))
        >>> tight.planned(SloTarget(ttft_s=1.0, tbt_s=0.1))
        SloTarget(ttft_s=1.0, tbt_s=0.02)
        >>> loose = TargetMix(ttft=(TargetShare(target_s=9.0, share=0.999),))
        >>> loose.planned(SloTarget(ttft_s=1.0, tbt_s=0.1))
        SloTarget(ttft_s=9.0, tbt_s=0.1)
        """
        return SloTarget(ttft_s=_planned(self.ttft, own.ttft_s), tbt_s=_planned(self.tbt, own.tbt_s))

    def tighter(self, own: SloTarget) -> float:
        """Returns the share of the requests that ask for a tighter target of either kind than the model's own."""
        return max(_below(self.ttft, own.ttft_s), _below(self.tbt, own.tbt_s))


OWN_TARGETS = TargetMix()


def mixed(parts: Iterable[tuple[float, TargetMix]]) -> TargetMix:
    """Adds mixes up, each with its weight."""
    weighted = list(parts)
    return TargetMix(
        ttft=_added([(weight, mix.ttft) for weight, mix in weighted]),
        tbt=_added([(weight, mix.tbt) for weight, mix in weighted]),
    )


def _planned(named: Sequence[TargetShare], own_s: float) -> float:
    of_own = TargetShare(target_s=own_s, share=1.0 - sum(n.share for n in named))
    rising = sorted((*named, of_own), key=lambda n: n.target_s)
    return min(_beyond(rising, TIGHTER_SHARE), max(own_s, _beyond(rising, OWN_SHARE)))


def _beyond(rising: Sequence[TargetShare], tighter_share: float) -> float:
    """The first target such that more than this share of the requests asks for it or a tighter one."""
    tighter, target_s = 0.0, rising[0].target_s
    for one in rising:
        target_s = one.target_s
        tighter += one.share
        if tighter > tighter_share:
            break
    return target_s


def _below(named: Sequence[TargetShare], own_s: float) -> float:
    return sum(n.share for n in named if n.target_s < own_s)


def _added(parts: Sequence[tuple[float, Sequence[TargetShare]]]) -> tuple[TargetShare, ...]:
    shares: dict[float, float] = {}
    for weight, named in parts:
        for one in named:
            shares[one.target_s] = shares.get(one.target_s, 0.0) + weight * one.share
    return tuple(TargetShare(target_s=target_s, share=share) for target_s, share in sorted(shares.items()))


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
