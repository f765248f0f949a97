"""Identifies who asks, and what they ask for beside the body."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pdmux_actor.messages import Slo
from router.admission_request import Priority

_TIER_NAMES: Mapping[Priority, str] = MappingProxyType(
    {Priority.LOW: "flex", Priority.NORMAL: "default", Priority.HIGH: "priority"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`tenant` names the API key, or whom a trusted proxy says it asks for; `key_id` is empty without keys,
    `request_id` the one that its client knows.
    Targets that are None are the model's; tighter ones than the model's are granted to whom `may_tighten_slo` says.
    `priority` is at most `max_priority`; `names_priority`: a header asked for it, which counts before the body.
    """

    tenant: str = ""
    priority: Priority = Priority.NORMAL
    max_priority: Priority = Priority.HIGH
    names_priority: bool = False
    ttft_s: float | None = None
    tbt_s: float | None = None
    conversation: str = ""
    key_id: str = ""
    request_id: str = ""
    may_tighten_slo: bool = False

    def asking(self, priority: Priority | None, conversation: str | None) -> "Caller":
        """Returns the caller with what the body asks for, as far as headers leave it open and the key admits it."""
        if priority is None or self.names_priority:
            priority = self.priority
        return replace(
            self,
            priority=min(priority, self.max_priority),
            conversation=self.conversation or conversation or "",
        )

    @property
    def service_tier(self) -> str:
        """Returns what OpenAI calls the priority."""
        return _TIER_NAMES[self.priority]

    def slo(self, of_model: Slo) -> "GrantedSlo":
        """A target binds everything that shares the unit, so one client's wish may be looser than the model's own, not
        tighter, unless its key says so.
        """
        asked = Slo(
            ttft_s=of_model.ttft_s if self.ttft_s is None else self.ttft_s,
            tbt_s=of_model.tbt_s if self.tbt_s is None else self.tbt_s,
        )
        if self.may_tighten_slo:
            return GrantedSlo(slo=asked)
        return GrantedSlo(
            slo=Slo(ttft_s=max(asked.ttft_s, of_model.ttft_s), tbt_s=max(asked.tbt_s, of_model.tbt_s)),
            is_ttft_clamped=asked.ttft_s < of_model.ttft_s,
            is_tbt_clamped=asked.tbt_s < of_model.tbt_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedSlo:
    """The targets that a request has, and which of them were asked for tighter than that."""

    slo: Slo
    is_ttft_clamped: bool = False
    is_tbt_clamped: bool = False


ANYBODY = Caller()
