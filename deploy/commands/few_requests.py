"""Says where the 99th percentiles of a table rest on few requests."""

from collections.abc import Mapping

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
