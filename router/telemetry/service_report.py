"""Reports how a request was served: response headers, a line in the log, and receipts of the last and the slowest."""

import heapq
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from pdmux_actor.messages import Slo
from router.errors import RouterError
from router.request_terms import GrantedSlo
from router.telemetry.request_labels import GENERATION_ENDPOINTS
from traces.timeliness import SloTarget, is_in_time

logger = logging.getLogger("muxfleet.requests")

_MOST_MOVES = 16
_LAST = 64
_SLOWEST = 32
_WINDOW_S = 600.0


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


def write_requests_to_stdout() -> None:
    """Writes requests to standard output, for processes whose output is collected, as Serve's replicas'."""
    handler = logging.StreamHandler(sys.__stdout__ or sys.stdout)  # Serve's own in its place makes text of the lines
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_request(state: Mapping[str, Any], *, endpoint: str, status: int, elapsed_s: float) -> None:
    """`state` is the request's: id, model, report, error, as far as it came. Nothing of prompts, answers or keys."""
    if endpoint not in GENERATION_ENDPOINTS or not logger.isEnabledFor(logging.INFO):
        return
    report: ServiceReport | None = state.get("report")
    error: RouterError | None = state.get("error")
    line = {
        "request_id": state["request_id"],
        "model": state.get("model", ""),
        "tenant": state.get("tenant", ""),
        "endpoint": endpoint,
        "status": status,
        "error": None if error is None else type(error).__name__,
        "elapsed_ms": round(elapsed_s * 1000, 3),
        **({} if report is None else report.as_dict()),
    }
    logger.info("%s", msgspec.json.encode(line).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Seconds since the request came, but for `ended_s`, which is of the day. `queue_s` is the wait for its turn at the
    gateway, of it `cold_s` without a unit that had the model; `prefill_s` from there to the first token, of it
    `ahead_s` expected for others on the unit; the rest up to `elapsed_s` is decoding. `waited_for` says behind what it
    queued. `key` is its API key's name.
    """

    request_id: str
    ended_s: float
    model: str
    key: str
    endpoint: str
    status: int
    error: str
    elapsed_s: float
    unit: str = ""
    queue_s: float = 0.0
    cold_s: float = 0.0
    prefill_s: float = 0.0
    ahead_s: float = 0.0
    ttft_s: float | None = None
    predicted_ttft_s: float | None = None
    worst_gap_s: float = 0.0
    target_ttft_s: float = 0.0
    target_tbt_s: float = 0.0
    in_time: bool = False
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    output_tokens: int = 0
    waited_for: str = ""
    moves: tuple[RequestMove, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceipts:
    """`last`: newest first. `slowest`: of the last ten to twenty minutes, those that took longest first."""

    last: tuple[Receipt, ...]
    slowest: tuple[Receipt, ...]


_Ended = tuple[Receipt, ServiceReport | None]
"""The receipt is completed by the report when somebody looks."""


class ReceiptBook:
    def __init__(self, time_of_day: Callable[[], float] = time.time) -> None:
        self._time_of_day = time_of_day
        self._last: deque[_Ended] = deque(maxlen=_LAST)
        self._slowest: list[tuple[float, int, _Ended]] = []
        self._before: list[tuple[float, int, _Ended]] = []  # of the window that is over
        self._window_s = 0.0
        self._numbers = count()

    def note(self, state: Mapping[str, Any], *, endpoint: str, status: int, elapsed_s: float) -> None:
        """`state` is the request's: id, model, report, error, as far as it came."""
        if endpoint not in GENERATION_ENDPOINTS:
            return
        error: RouterError | None = state.get("error")
        receipt = Receipt(  # and not the state: an error's frames hold the whole request
            request_id=state["request_id"],
            ended_s=self._time_of_day(),
            model=state.get("model", ""),
            key=state.get("tenant", ""),
            endpoint=endpoint,
            status=status,
            error="" if error is None else str(error),
            elapsed_s=elapsed_s,
        )
        ended = receipt, state.get("report")
        self._last.append(ended)
        if receipt.ended_s - self._window_s >= _WINDOW_S:
            is_next = receipt.ended_s - self._window_s < 2 * _WINDOW_S
            self._before, self._slowest = (self._slowest if is_next else []), []
            self._window_s = receipt.ended_s
        entry = (elapsed_s, next(self._numbers), ended)
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, entry)
        elif elapsed_s > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, entry)

    def told(self) -> RequestReceipts:
        slow = heapq.nlargest(_SLOWEST, [*self._slowest, *self._before])
        return RequestReceipts(
            last=tuple(_completed(*ended) for ended in reversed(self._last)),
            slowest=tuple(_completed(*ended) for _, _, ended in slow),
        )


def merged_receipts(of_gateways: Iterable[RequestReceipts]) -> RequestReceipts:
    """Returns what all gateways together would keep."""
    books = list(of_gateways)
    last = heapq.nlargest(_LAST, (r for b in books for r in b.last), key=lambda r: r.ended_s)
    slowest = heapq.nlargest(_SLOWEST, (r for b in books for r in b.slowest), key=lambda r: r.elapsed_s)
    return RequestReceipts(last=tuple(last), slowest=tuple(slowest))


# Of a Receipt, as the report has them.
_ALIKE = (
    *("queue_s", "cold_s", "prefill_s", "ahead_s", "ttft_s", "predicted_ttft_s", "worst_gap_s", "in_time"),
    *("prompt_tokens", "prefix_tokens", "output_tokens", "waited_for"),
)


def _completed(receipt: Receipt, report: ServiceReport | None) -> Receipt:
    if report is None:
        return receipt
    told: dict[str, Any] = {name: getattr(report, name) for name in _ALIKE}
    slo, moves = report.slo, tuple(report.moves)
    return replace(receipt, unit=report.unit_id, target_ttft_s=slo.ttft_s, target_tbt_s=slo.tbt_s, moves=moves, **told)
