"""Names parameters of the chat as the APIs around it call them: their errors are told in the names that were sent."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_Names = Sequence[tuple[re.Pattern[str], str]]


def _names(*pairs: tuple[str, str]) -> _Names:
    """Beginnings of parameters, and what stands for them; the first that fits counts."""
    return tuple((re.compile(rf"{pattern}(?=[.\[]|$)"), name) for pattern, name in pairs)


# By the beginning of paths.
_NAMES: Mapping[str, _Names] = MappingProxyType(
    {
        "/v1/messages": _names(
            (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
            (r"tools\[(\d+)\]\.function", r"tools[\1]"),
            (r"tool_choice\.function", "tool_choice"),
            (r"response_format\.json_schema", "output_config.format"),
            ("response_format", "output_config.format"),
            ("reasoning_effort", "output_config.effort"),
            ("stop", "stop_sequences"),
        ),
        "/v1/responses": _names(
            (r"tools\[(\d+)\](\.tools\[\d+\])?\.function", r"tools[\1]\2"),
            (r"tool_choice\.(function|allowed_tools)", "tool_choice"),
            (r"response_format\.json_schema", "text.format"),
            ("response_format", "text.format"),
            ("reasoning_effort", "reasoning.effort"),
            ("max_tokens", "max_output_tokens"),
            ("messages", "input"),
        ),
    }
)


def in_names_of(path: str, message: str, param: str | None) -> tuple[str, str | None]:
    """Returns an error's message and parameter as the API at `path` has them."""
    if param is None:
        return message, None
    names = next((names for beginning, names in _NAMES.items() if path.startswith(beginning)), ())
    for pattern, name in names:
        if pattern.match(param):
            called = pattern.sub(name, param, count=1)
            return message.replace(param, called), called
    return message, param
