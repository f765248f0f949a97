"""Makes a trace from a large machine fit a small one, and says by how much it was scaled."""

import math
from dataclasses import dataclass

from traces.errors import BadParameter
from traces.trace import Trace
from traces.transforms import scale_lengths, scale_times

_FIT_QUANTILE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """Holds what a machine takes: the longest prompt and output, and the token rates it can sustain.

    `max_duration_s` bounds the time from the first arrival to the last.
    """

    max_input_tokens: int
    max_output_tokens: int
    input_tokens_per_s: float
    output_tokens_per_s: float
    max_duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`clamped` counts requests with a length that scaling alone left outside the limits."""

    time_factor: float
    input_factor: float
    output_factor: float
    clamped: int
    requests: int

    def __str__(self) -> str:
        return (
            f"times x{self.time_factor:.3g}, input lengths x{self.input_factor:.3g}, output lengths "
            f"x{self.output_factor:.3g} ({self.clamped} of {self.requests} requests clamped)"
        )


def scale_to(trace: Trace, limits: MachineLimits, *, min_tokens: int = 1) -> tuple[Trace, Scale]:
    """Picks one factor for prompts, one for outputs and one for times.

    Lengths shrink until 99 % of them are within the limits; the rest is clamped. Times then stretch until the token
    rates are within the machine's. Where that takes longer than `max_duration_s`, times stretch (or shrink) to that
    duration and lengths shrink further instead. Nothing grows, and time is never compressed for its own sake.

    Raises:
        BadParameter: the trace is empty or has no arrival times, or a limit is not positive.
    """
    _check(trace, limits)
    count = len(trace.records)
    inputs = [r.input_tokens for r in trace.records]
    outputs = [r.output_tokens for r in trace.records]
    input_factor = min(1.0, limits.max_input_tokens / _quantile(inputs))
    output_factor = min(1.0, limits.max_output_tokens / max(1, _quantile(outputs)))
    # Work of all requests but the last, which arrives when the span ends, is what the span has to absorb.
    needed_s = max(
        sum(inputs[:-1]) * input_factor / limits.input_tokens_per_s,
        sum(outputs[:-1]) * output_factor / limits.output_tokens_per_s,
    )
    time_factor = max(1.0, needed_s / trace.span_s) if trace.span_s > 0 else 1.0
    if limits.max_duration_s is not None and trace.span_s * time_factor > limits.max_duration_s:
        time_factor = limits.max_duration_s / trace.span_s
        shrink = min(1.0, limits.max_duration_s / needed_s)
        input_factor, output_factor = input_factor * shrink, output_factor * shrink
    clamped = sum(
        not (_fits(i * input_factor, min_tokens, limits.max_input_tokens))
        or not (_fits(o * output_factor, min_tokens, limits.max_output_tokens))
        for i, o in zip(inputs, outputs, strict=True)
    )
    scaled = scale_lengths(
        trace,
        input_factor=input_factor,
        output_factor=output_factor,
        min_tokens=min_tokens,
        max_input_tokens=limits.max_input_tokens,
        max_output_tokens=limits.max_output_tokens,
    )
    scale = Scale(
        time_factor=time_factor, input_factor=input_factor, output_factor=output_factor, clamped=clamped, requests=count
    )
    return scale_times(scaled, time_factor), scale


def _check(trace: Trace, limits: MachineLimits) -> None:
    if not trace.records:
        raise BadParameter(name="trace", value=trace.name, remedy="give a trace with at least one request")
    if not trace.has_arrivals:
        raise BadParameter(name="trace", value=trace.name, remedy="give it arrival times first (with_arrivals)")
    for name in (
        "max_input_tokens",
        "max_output_tokens",
        "input_tokens_per_s",
        "output_tokens_per_s",
        "max_duration_s",
    ):
        value = getattr(limits, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise BadParameter(name=name, value=value, remedy="give a finite number above 0")


def _quantile(values: list[int]) -> int:
    """The smallest value that at least 99 % of the values do not exceed."""
    return sorted(values)[math.ceil(_FIT_QUANTILE * len(values)) - 1]


def _fits(tokens: float, minimum: int, maximum: int) -> bool:
    """Whether a scaled length rounds to something within the limits."""
    return minimum <= math.floor(tokens + 0.5) <= maximum
