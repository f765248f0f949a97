"""One generation as admission and routing see it."""

from dataclasses import dataclass
from enum import IntEnum

from pdmux_actor.messages import Slo


class Priority(IntEnum):
    """A higher class is served first wherever something waits."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """`request_id` is unique in the gateway, `tenant` names an API key ("" without keys).

    From `deadline_s` on it is not worth serving: it waits for its turn, or for a unit, until then. `prefix` holds names
    of the prompt's prefixes, shortest first (PrefixIndex), `conversation` what the client calls its conversation.
    `constrained`: its output follows a schema, which not every engine can see to. `fills_context`: nobody asked for
    `max_tokens`, which are what the longest units took when it came; they may take less by now. `param`: where its
    prompt came from.
    """

    request_id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    slo: Slo
    deadline_s: float
    tenant: str = ""
    priority: Priority = Priority.NORMAL
    prefix: tuple[bytes, ...] = ()
    conversation: str = ""
    constrained: bool = False
    fills_context: bool = False
    param: str = "prompt"

    @property
    def gives_way(self) -> bool:
        """Says whether units serve it with what others leave."""
        return self.priority is Priority.LOW

    @property
    def needed_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens
