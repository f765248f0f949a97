"""Remembers that a control loop does not take questions for news, as one of another release may not."""

_MOST_PLAIN = 128  # half a second each


class NewsRefusals:
    """Doubles, with each refusal in a row, the plain questions that come before the next one for news; all releases
    understand those. In a rolling upgrade the control loop can stay an earlier one for long, or fail over an event that
    it is told with each question for news.
    """

    def __init__(self) -> None:
        self._next_plain = 1
        self._plain_left = 0

    @property
    def has_some(self) -> bool:
        return self._next_plain > 1

    def is_plain_next(self) -> bool:
        """Says whether the next question is to be a plain one, and counts it."""
        self._plain_left -= 1
        return self._plain_left >= 0

    def note(self) -> None:
        """A question for news was refused."""
        self._plain_left, self._next_plain = self._next_plain, min(2 * self._next_plain, _MOST_PLAIN)

    def clear(self) -> None:
        """One was answered, or another control loop may be there next time."""
        self._next_plain, self._plain_left = 1, 0
