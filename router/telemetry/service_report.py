"""Reports to a request how it was served: response headers and the request log."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdmux_actor.messages import Slo
from router.request_terms import GrantedSlo
from traces.timeliness import SloTarget, is_in_time

_MOST_MOVES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMove:
    """A request lost `unit`, `at_s` after it came, and went on elsewhere."""

    at_s: float
    unit: str
    reason: str


@dataclass(slots=True, eq=False)
class ServiceReport:
    """Filled in as the request goes its way; of several choices, by the first one that gets a token. `cold_s` is the
    part of the queueing in which no unit had the model ready. `ahead_s` is what prefills before it on its unit were
    expected to take; `waited_for` says what it queued for at the gateway. `held_s`: how long it waited for the first
    unit of its model to tell how long a sequence may be.
    """

    granted: GrantedSlo
    started_s: float
    request_id: str = ""
    traceparent: str = ""
    unit_id: str = ""
    queue_s: float = 0.0
    cold_s: float = 0.0
    prefill_s: float = 0.0
    predicted_ttft_s: float | None = None
    prefix_tokens: int = 0
    ttft_s: float | None = None
    worst_gap_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ahead_s: float = 0.0
    held_s: float = 0.0
    waited_for: str = ""
    moves: list[RequestMove] = field(default_factory=list)

    def admitted(
        self, unit_id: str, now_s: float, *, cold_s: float, predicted_ttft_s: float, prefix_tokens: int, ahead_s: float
    ) -> None:
        if not self.unit_id:
            self.unit_id = unit_id
            self.queue_s = now_s - self.started_s
            self.cold_s = min(self.held_s + cold_s, self.queue_s)
            self.predicted_ttft_s = predicted_ttft_s or None
            self.prefix_tokens = prefix_tokens
            self.ahead_s = ahead_s

    def waits(self, reason: str) -> None:
        self.waited_for = self.waited_for or reason

    def moved(self, unit_id: str, reason: str, now_s: float) -> None:
        if len(self.moves) < _MOST_MOVES:
            self.moves.append(RequestMove(at_s=now_s - self.started_s, unit=unit_id, reason=reason))

    def first_token(self, now_s: float) -> None:
        if self.ttft_s is None:
            self.ttft_s = now_s - self.started_s
            self.prefill_s = max(0.0, self.ttft_s - self.queue_s)

    @property
    def slo(self) -> Slo:
        return self.granted.slo

    @property
    def ttft_met(self) -> bool:
        return self.ttft_s is not None and self.ttft_s <= self.slo.ttft_s

    @property
    def tbt_met(self) -> bool:
        return self.worst_gap_s <= self.slo.tbt_s

    @property
    def in_time(self) -> bool:
        target = SloTarget(ttft_s=self.slo.ttft_s, tbt_s=self.slo.tbt_s)
        return is_in_time(self.ttft_s, (self.worst_gap_s,), target)

    def as_dict(self) -> dict[str, object]:
        """Returns the report for the request log: milliseconds, and nothing of what was said."""
        return {
            "unit": self.unit_id,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_tokens": self.prefix_tokens,
            "queue_ms": _rounded_ms(self.queue_s),
            "cold_ms": _rounded_ms(self.cold_s),
            "prefill_ms": _rounded_ms(self.prefill_s),
            "ttft_ms": _rounded_ms(self.ttft_s),
            "predicted_ttft_ms": _rounded_ms(self.predicted_ttft_s),
            "worst_gap_ms": _rounded_ms(self.worst_gap_s),
            "ttft_met": self.ttft_met,
            "tbt_met": self.ttft_met and self.tbt_met,
            "in_time": self.in_time,
        }

    def headers(self) -> Mapping[str, str]:
        """Returns the response headers. A stream sends them with its first token: later figures cannot be told in
        them.
        """
        if not self.unit_id:
            return {}
        return {
            "x-muxfleet-unit": self.unit_id,
            "x-muxfleet-queue-ms": _ms(self.queue_s),
            "x-muxfleet-cold-ms": _ms(self.cold_s),
            "x-muxfleet-prefill-ms": _ms(self.prefill_s),
            "x-muxfleet-slo": "met" if self.in_time else "missed",
            **self._clamped(),
        }

    def _clamped(self) -> Mapping[str, str]:
        """Targets that the client asked for tighter than it may, with what holds instead."""
        parts = []
        if self.granted.is_ttft_clamped:
            parts.append(f"ttft-ms={self.slo.ttft_s * 1000:g}")
        if self.granted.is_tbt_clamped:
            parts.append(f"tpot-ms={self.slo.tbt_s * 1000:g}")
        return {"x-muxfleet-slo-clamped": ", ".join(parts)} if parts else {}


def _rounded_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
