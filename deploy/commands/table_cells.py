"""Figures as tables of a fleet show them: in cells, in words, and how evenly models and API keys are served."""

from collections.abc import Mapping

from msgspec import to_builtins

from deploy.commands.fitted_table import FittedTable
from deploy.inspection.live_fleet import LiveFleet
from pdmux_actor.lease import LoadProgress, LoadStage
from placement.step_correction import StepCorrection
from router.access.key_figures import KeysReport

NONE = "-"


def milliseconds(time_s: float | None) -> str:
    return NONE if time_s is None else f"{time_s * 1000:.0f} ms"


def share_cell(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def blocks_cell(used: int, quota: int) -> str:
    return f"{bar(used / max(1, quota))} {used}/{quota}"


def lost_cell(ttft_lost_s: float | None, tbt_lost_s: float | None) -> str:
    """Tells what other models cost a first token, and a gap, on average."""
    if ttft_lost_s is None and tbt_lost_s is None:
        return NONE
    return f"{milliseconds(ttft_lost_s)} / {milliseconds(tbt_lost_s)}"


def fitted(*titles: str, keys: int = 1) -> FittedTable:
    table = FittedTable(keys=keys)
    for title in titles:
        table.add_column(title)
    return table


_BAR_CELLS = 6


def bar(share: float) -> str:
    """Draws a share as a bar of a few cells; beyond 1 it is full."""
    full = min(_BAR_CELLS, max(0, round(share * _BAR_CELLS)))
    return "█" * full + "░" * (_BAR_CELLS - full)


def load_bar(progress: LoadProgress) -> str:
    """Draws it as `reading ███░░░ 52% of 14.2 GB`, or `capturing ███░░░ 151 of 290 graphs`."""
    if progress.stage is LoadStage.CAPTURING:
        amount = f"{progress.done_graphs} of {progress.total_graphs} graphs"
    else:
        amount = f"{progress.share:.0%} of {progress.total_bytes / 1e9:.1f} GB"
    return f"{progress.stage} {bar(progress.share)} {amount}"


_ENOUGH = 100  # of fewer, the 99th percentile lies between the two slowest
_MOST_NAMED = 5


def few_requests_line(finished: Mapping[str, int]) -> str | None:
    """`finished`: requests by model. None: every model that has any has enough."""
    few = [f"{model} ({count})" for model, count in finished.items() if 0 < count < _ENOUGH]
    if not few:
        return None
    more = f" and {len(few) - _MOST_NAMED} more" if len(few) > _MOST_NAMED else ""
    named = ", ".join(few[:_MOST_NAMED])
    return f"fewer than {_ENOUGH} requests ended, so TTFT p99 is nearly the slowest one: {named}{more}"


def pace_in_words(correction: StepCorrection) -> str | None:
    """None where nothing is corrected.

    >>> pace_in_words(StepCorrection(prefill=1.3, decode=1.3))
    'runs 30 % slower than its model'
    >>> pace_in_words(StepCorrection(prefill=0.9, contention=1.25))
    'runs prefills 10 % faster than its model; decode beside prefills takes 25 % longer'
    >>> pace_in_words(StepCorrection()) is None
    True
    """
    prefill, decode = (_words(factor) for factor in (correction.prefill, correction.decode))
    if prefill == decode:
        parts = [f"runs {prefill} than its model"] if prefill is not None else []
    else:
        named = [f"{what} {words}" for what, words in (("prefills", prefill), ("decode steps", decode)) if words]
        parts = [f"runs {' and '.join(named)} than its model"]
    if (beside := _percent(correction.contention)) != 0:
        parts.append(f"decode beside prefills takes {abs(beside)} % {'longer' if beside > 0 else 'less'}")
    return "; ".join(parts) or None


def _words(factor: float) -> str | None:
    percent = _percent(factor)
    return None if percent == 0 else f"{abs(percent)} % {'slower' if percent > 0 else 'faster'}"


def _percent(factor: float) -> int:
    return round(100 * (factor - 1))


def key_table(report: KeysReport) -> FittedTable:
    table = fitted("API key", "requests", "tokens", "lately", "share", "even share", "prompt tokens waiting", "refused")
    for key in report.keys:
        figures = key.figures
        table.add_row(
            figures.name,
            str(figures.requests),
            str(figures.tokens),
            str(figures.recent_tokens),
            share_cell(key.share),
            NONE if key.share is None else share_cell(report.fair_share),
            str(figures.waiting_tokens),
            str(figures.rate_limited + figures.not_allowed),
        )
    return table


def fairness_line(fleet: LiveFleet, keys: KeysReport | None) -> str | None:
    """None where there is nothing to compare."""
    told = []
    if fleet.jain_index is not None and len(fleet.models) > 1:
        told.append(f"{fleet.jain_index:.2f} of models' requests in time")
    if keys is not None and keys.jain_index is not None and len(keys.keys) > 1:
        told.append(f"{keys.jain_index:.2f} of keys' tokens in the last {keys.window_s / 60:.0f} minutes")
    return f"Jain's index (1: all alike): {', '.join(told)}" if told else None


def fairness_dict(fleet: LiveFleet, keys: KeysReport | None) -> dict[str, object]:
    return {
        "models": {
            "jain_index": fleet.jain_index,
            "in_time": {m.model: m.in_time for m in fleet.models},
            "token_share": {m.model: m.token_share for m in fleet.models},
        },
        "keys": to_builtins(keys),
    }
