"""Defines what a dispatch policy answers, and what one may answer besides."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pdmux_actor.scheduling.policies.base import Action, Decode, Mixed, StretchView, UnitState


class DispatchPolicy(Protocol):
    """Deterministic: the same states in the same order give the same actions.

    With `target_aware` prompts wait in serving order (prompt_order.py), else in that of their arrival, and a first
    token is held back where the second would come too late after it (answers.py).
    """

    target_aware: bool

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        """Chooses at most one action for an idle prefill lane, and decodes of models that have none in flight: one for
        an idle decode lane, or as many as `settings.decode_lanes` admits. All shares never sum to more than the device.
        """
        ...


@runtime_checkable
class RoomPolicy(Protocol):
    """A policy that bounds how many sequences decode at once by more than the settings."""

    def rooms(self, state: UnitState) -> Mapping[str, int]:
        """Returns for each bounded model how many sequences may be in; prompts wait until fewer are."""
        ...


@runtime_checkable
class BatchPolicy(Protocol):
    """A policy that sees batches as wholes: their sizes, targets and lengths, and how long one has waited. It reads
    nothing of what their sequences have been given one by one, so that it may be asked before they are given it.
    """

    sees_batches_only: bool


@runtime_checkable
class StretchPolicy(Protocol):
    """A policy whose decisions in a stretch of decode need no look at the whole unit. Others are asked to `choose` at
    every step.
    """

    def go_on(self, view: StretchView) -> Decode | Mixed:
        """Returns what `choose` would, and leaves the policy as `choose` would."""
        ...
