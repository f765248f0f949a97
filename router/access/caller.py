"""Identifies who asks, and what they ask for beside the body."""

from dataclasses import dataclass

from pdmux_actor.messages import Slo
from router.admission_request import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`tenant` names the API key, or whom a trusted proxy says it asks for; `key_id` is empty without keys,
    `request_id` the one that its client knows.
    Targets that are None are the model's; tighter ones than the model's are granted to whom `may_tighten_slo` says.
    """

    tenant: str = ""
    priority: Priority = Priority.NORMAL
    ttft_s: float | None = None
    tbt_s: float | None = None
    conversation: str = ""
    key_id: str = ""
    request_id: str = ""
    may_tighten_slo: bool = False

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
