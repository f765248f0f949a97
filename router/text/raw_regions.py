"""transformers' parser of replies, which tells of a part that closes what was said of it, its marks included."""

from typing import Any

from transformers.utils.chat_parsing.response_parser import ResponseParser


class RawRegions(ResponseParser):  # type: ignore[misc]  # transformers has no types
    """Events of type `region_close` have `raw` where a mark has opened the part, and `is_open`: none has closed it."""

    _region_start = 0
    _body_start = 0

    def _open_explicit(self, events: list[dict[str, Any]], field: Any, m: Any) -> None:  # noqa: ANN401  # as in the base
        self._region_start, self._body_start = m.start(), m.end()
        super()._open_explicit(events, field, m)

    def _close_current(self, events: list[dict[str, Any]]) -> None:
        is_marked = self._current is not None and self._current != self._implicit_name
        body_end = self._body_start + len(self._body)
        super()._close_current(events)
        if is_marked:
            events[-1]["is_open"] = self._pos == body_end
            events[-1]["raw"] = self._buffer[self._region_start : self._pos]
