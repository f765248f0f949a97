"""Who asks, and what they ask for beside the body."""

from dataclasses import dataclass, replace

from pdmux_actor.messages import Slo
from router.ask import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`tenant` names the API key, or whom a trusted proxy says it asks for; `key_id` is empty without keys.
    Targets that are None are the model's.
    """

    tenant: str = ""
    priority: Priority = Priority.NORMAL
    ttft_s: float | None = None
    tbt_s: float | None = None
    conversation: str = ""
    key_id: str = ""

    def slo(self, of_model: Slo) -> Slo:
        return replace(
            of_model,
            ttft_s=of_model.ttft_s if self.ttft_s is None else self.ttft_s,
            tbt_s=of_model.tbt_s if self.tbt_s is None else self.tbt_s,
        )


ANYBODY = Caller()
