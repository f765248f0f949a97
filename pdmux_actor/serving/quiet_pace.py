"""Says when to ask again: as often as one looks while something happens, more rarely when nothing does (sans-I/O)."""

from dataclasses import dataclass, field

_SETTLE_S = 10.0


@dataclass(slots=True, eq=False)
class QuietPace:
    """Whoever asks looks every `busy_s` at what it knows by itself, which costs next to nothing, and `note`s it: a
    change is told at that look. Where nothing has changed for 10 s, neither here nor in the answers, `quiet_s` pass
    between two calls. It is to stay well below the silence after which the other side takes somebody for lost.
    """

    busy_s: float
    quiet_s: float
    _known: dict[str, object] = field(default_factory=dict)
    _changed_s: float = float("-inf")
    _asked_s: float = float("-inf")
    _is_news: bool = False

    def note(self, what: str, state: object, now_s: float) -> None:
        """`state` is compared with the one before."""
        if what not in self._known or self._known[what] != state:
            self._known[what] = state
            self._changed_s = now_s
            self._is_news = True

    def is_due(self, now_s: float) -> bool:
        """Returns whether to ask now; who is told so does."""
        period_s = self.busy_s if now_s - self._changed_s < _SETTLE_S else self.quiet_s
        if not self._is_news and now_s - self._asked_s < period_s - self.busy_s / 2:
            return False
        self._asked_s = now_s
        self._is_news = False
        return True
