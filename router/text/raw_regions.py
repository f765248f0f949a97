"""transformers' parser of replies, which tells of a part that closes what was said of it, its marks included."""

import re
from typing import Any

from transformers.utils.chat_parsing.response_parser import ResponseParser

_QUOTE = re.compile(r'\\.|"', re.DOTALL)


class RawRegions(ResponseParser):  # type: ignore[misc]  # transformers has no types
    """Events of type `region_close` have `raw` where a mark has opened the part, and `is_open`: none has closed it.

    A mark inside a string of JSON closes nothing, as long as one outside of strings follows.
    """

    _pos: int  # the base's
    _region_start = 0
    _body_start = 0
    _quotes_read = (0, False)  # up to where quotes were counted, and whether a string is open there
    _passed: Any = None  # the first mark inside a string

    def cast(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Makes of texts what the tool takes: "7" a number."""
        call = {"function": {"name": name, "arguments": dict(arguments)}}
        cast: dict[str, Any] = self._coerce_tool_calls(call)["function"]["arguments"]
        return cast

    def _open_explicit(self, events: list[dict[str, Any]], field: Any, m: Any) -> None:  # noqa: ANN401  # as in the base
        self._region_start, self._body_start = m.start(), m.end()
        self._quotes_read, self._passed = (m.end(), False), None
        super()._open_explicit(events, field, m)

    def _scan(self, watch: list[tuple[str, Any]], eos: bool) -> tuple[tuple[str, Any, Any] | None, int]:
        best, hold_start = super()._scan(watch, eos)
        while best is not None and self._is_in_string(best):
            self._passed = self._passed or best[2]
            self._accumulate([], self._buffer[self._pos : best[2].end()])
            self._pos = best[2].end()
            best, hold_start = super()._scan(watch, eos)
        if best is None and eos and self._passed is not None:  # the quotes were none
            self._pos = self._passed.start()
            self._body = self._buffer[self._body_start : self._pos]
            best = ("close", self._spec.fields[self._current], self._passed)
        if best is not None:
            self._passed = None
        return best, hold_start

    def _is_in_string(self, best: tuple[str, Any, Any]) -> bool:
        kind, field, found = best
        if kind != "close" or field.content != "json" or field.content_args.get("string_delims"):
            return False
        if "as_python" in str(field.transform):  # whose texts have other quotes, too
            return False
        position, is_open = self._quotes_read
        for quote in _QUOTE.finditer(self._buffer, position, found.start()):
            is_open ^= quote[0] == '"'
        self._quotes_read = (found.start(), is_open)
        return is_open

    def _close_current(self, events: list[dict[str, Any]]) -> None:
        is_marked = self._current is not None and self._current != self._implicit_name
        body_end = self._body_start + len(self._body)
        super()._close_current(events)
        if is_marked:
            events[-1]["is_open"] = self._pos == body_end
            events[-1]["raw"] = self._buffer[self._region_start : self._pos]
