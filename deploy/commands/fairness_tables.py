"""Tells how evenly a fleet serves its models and API keys, as a table and in a line."""

from msgspec import to_builtins

from deploy.commands.fitted_table import FittedTable
from deploy.commands.table_cells import NONE, fitted, share_cell
from deploy.inspection.live_fleet import LiveFleet
from router.access.key_fairness import KeysReport


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
