"""Reads durations as people write them on a command line."""

import re
from collections.abc import Mapping

from deploy.errors import OptionNotUsable

_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 366 * 86_400


def seconds_of(text: str, *, option: str) -> int:
    """Reads 90s, 30m, 1h or 2d. Raises OptionNotUsable."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise OptionNotUsable(option=option, value=text, remedy="write a time up to a year, such as 90s, 30m, 1h or 2d")
    return seconds
