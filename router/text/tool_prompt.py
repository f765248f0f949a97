"""Tools told to a model whose chat template knows none: in a system message, in the words of Hermes and Qwen."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)


def with_tools_told(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of plain text that say what `tools` there are, which were called, and what they answered."""
    told = [_plain(message) for message in messages]
    prompt = _BEFORE + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _AFTER if tools else ""
    if not prompt:
        return told
    if told[0]["role"] == "system":
        told[0]["content"] = f"{told[0]['content']}\n\n{prompt}"
        return told
    return [{"role": "system", "content": prompt}, *told]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    content = "\n".join(part for part in (message["content"], *calls) if part)
    plain = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
    return {**plain, "content": content}
