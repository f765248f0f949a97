"""Service that flows have received, in virtual tokens: VTC (Sheng et al., OSDI 2024, Algorithm 1) with bounded credit.

Each flow has a counter of the service it has received, in weighted tokens; the flow with the least is served next. The
predicted output is charged at admission, settled at the end (their §4.4).

A flow that comes back is lifted to the least counter among those that wait, less a credit. Without credit (VTC) a burst
of a flow that takes less than its share takes turns with a flow that waits all the time, and its first tokens are late
though its share is not used up. The credit bounds the burst. It is earned only while others wait: what nobody else
wanted is held against nobody.
"""

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""A generated token costs more than a prompt token: w_p and w_q of the paper."""


def virtual_tokens(*, prompt_tokens: int = 0, output_tokens: int = 0) -> float:
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


class ServiceCounters:
    """Virtual tokens per key."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._active: set[str] = set()
        self._level = 0.0  # never falls: flows that come one after the other do not get ever lower counters by credit
        self._level_before = 0.0  # when somebody last began to wait after nobody did
        self._credit = 0.0

    def activate(self, key: str, *, credit: float = 0.0) -> None:
        """`credit`, in virtual tokens, is how far behind the others a flow's counter may be after idling."""
        if key in self._active:
            return
        if self._active:
            self._level = self._least()
        else:
            self._level_before = self._level
        self._credit = credit
        self._counters[key] = max(self._counters.get(key, 0.0), self._floor)
        self._active.add(key)

    def deactivate(self, key: str) -> None:
        if key in self._active:
            self._active.discard(key)
            if not self._active:
                self._level = max(self._level, self._counters[key])

    def charge(self, key: str, virtual_tokens: float) -> None:
        self._counters[key] = self._counters.get(key, 0.0) + virtual_tokens

    def of(self, key: str) -> float:
        return self._counters.get(key, 0.0)

    def take_over(self, key: str, other: "ServiceCounters") -> None:
        """Goes on with a flow that was counted elsewhere, with its lead over the others there."""
        self._counters[key] = self._level + max(0.0, other.of(key) - other._least())
        if key in other._active:
            self._active.add(key)

    def forget_idle(self) -> None:
        """Bounds memory where keys come and go. An idle key would be lifted to the floor anyway when it comes back,
        unless it is ahead of it: it has used some of its credit.
        """
        self._counters = {k: c for k, c in self._counters.items() if k in self._active or c > self._floor}

    def _least(self) -> float:
        return max(self._level, min((self._counters[k] for k in self._active), default=0.0))

    @property
    def _floor(self) -> float:
        return max(self._level - self._credit, self._level_before)
