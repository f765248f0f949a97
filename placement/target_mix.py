"""Defines which targets the requests for a model ask for, and which of them is planned for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
