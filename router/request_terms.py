"""The terms on which a request is served: who asks, with which priority and targets, and what admission and routing
know of one generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from pdmux_actor.messages import Slo

_LEAST_TTFT_S = 1e-3


def left_of(slo: Slo, waited_s: float) -> Slo:
    """Returns what a unit has of a request's targets when it has waited elsewhere. One that is over stays above 0."""
    return Slo(ttft_s=max(_LEAST_TTFT_S, slo.ttft_s - waited_s), tbt_s=slo.tbt_s) if waited_s > 0 else slo


class Priority(IntEnum):
    """A higher class is served first wherever something waits."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


_TIER_NAMES: Mapping[Priority, str] = MappingProxyType(
    {Priority.LOW: "flex", Priority.NORMAL: "default", Priority.HIGH: "priority"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`tenant` names the API key, or whom a trusted proxy says it asks for; `key_id` is empty without keys,
    `request_id` the one that its client knows; `traceparent` is that of the request's span where it is traced.
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
    traceparent: str = ""
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
    def is_judged(self) -> bool:
        """Says whether its requests count in figures of requests in time: low ones have what others leave."""
        return self.priority is not Priority.LOW

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """`request_id` is unique in the gateway, `tenant` names an API key ("" without keys). `came_s`: its target for the
    first token counts from there; None: from when it is offered.

    From `deadline_s` on it is not worth serving: it waits for its turn, or for a unit, until then. `prefix` holds names
    of the prompt's prefixes, shortest first (PrefixIndex), `conversation` what the client calls its conversation.
    `constrained`: its output follows a schema, which not every engine can see to. `fills_context`: nobody asked for
    `max_tokens`, which are what the longest units took when it came; they may take less by now. `param`: where its
    prompt came from. `weights`: those of the model that its prompt was made for; (): any.
    """

    request_id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    slo: Slo
    deadline_s: float
    came_s: float | None = None
    tenant: str = ""
    priority: Priority = Priority.NORMAL
    prefix: tuple[bytes, ...] = ()
    conversation: str = ""
    constrained: bool = False
    fills_context: bool = False
    param: str = "prompt"
    weights: tuple[str | None, ...] = ()

    @property
    def gives_way(self) -> bool:
        """Says whether units serve it with what others leave."""
        return self.priority is Priority.LOW

    @property
    def needed_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens
