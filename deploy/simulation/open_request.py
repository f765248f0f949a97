"""Requests of a simulated fleet, from the arrival to what became of them."""

from dataclasses import dataclass, field

from deploy.simulation.gateway import Stay
from pdmux_actor.messages import GenerateRequest
from traces.outcome import Ending, RequestOutcome
from traces.record import TraceRecord


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Admitted, and not ended."""

    request: GenerateRequest
    arrival_s: float
    stay: Stay
    unit_id: str
    first_s: float | None = None
    last_s: float = 0.0
    output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    homeless_since_s: float | None = None

    @property
    def ttft_met(self) -> bool:
        return self.first_s is not None and self.first_s - self.arrival_s <= self.request.slo.ttft_s

    @property
    def tbt_met(self) -> bool:
        return max(self.gaps_s, default=0.0) <= self.request.slo.tbt_s

    def outcome(self, ending: Ending, now_s: float) -> RequestOutcome:
        return RequestOutcome(
            index=int(self.request.request_id),
            model=self.request.model,
            ending=ending,
            scheduled_s=self.arrival_s,
            sent_s=self.arrival_s,
            end_s=now_s,
            ttft_s=None if self.first_s is None else self.first_s - self.arrival_s,
            gaps_s=tuple(self.gaps_s),
            input_tokens=len(self.request.prompt_token_ids),
            requested_tokens=self.request.sampling.max_tokens,
            output_tokens=self.output_tokens,
        )


def rejected(index: int, record: TraceRecord, now_s: float) -> RequestOutcome:
    assert record.model is not None
    return RequestOutcome(
        index=index,
        model=record.model,
        ending=Ending.REJECTED,
        scheduled_s=record.arrival_s,
        sent_s=record.arrival_s,
        end_s=now_s,
        ttft_s=None,
        gaps_s=(),
        input_tokens=record.input_tokens,
        requested_tokens=max(1, record.output_tokens),
        output_tokens=0,
    )
