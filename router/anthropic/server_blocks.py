"""Blocks of tools that Anthropic runs: in a conversation that began there. The model is not told of them."""

import msgspec


class ServerToolUse(msgspec.Struct, tag="server_tool_use", gc=False):
    name: str = ""


class WebSearchFound(msgspec.Struct, tag="web_search_tool_result", gc=False):
    tool_use_id: str


class WebFetchFound(msgspec.Struct, tag="web_fetch_tool_result", gc=False):
    tool_use_id: str


class CodeFound(msgspec.Struct, tag="code_execution_tool_result", gc=False):
    tool_use_id: str


class BashFound(msgspec.Struct, tag="bash_code_execution_tool_result", gc=False):
    tool_use_id: str


class EditorFound(msgspec.Struct, tag="text_editor_code_execution_tool_result", gc=False):
    tool_use_id: str


class ToolSearchFound(msgspec.Struct, tag="tool_search_tool_result", gc=False):
    tool_use_id: str


class McpToolUse(msgspec.Struct, tag="mcp_tool_use", gc=False):
    name: str = ""


class McpFound(msgspec.Struct, tag="mcp_tool_result", gc=False):
    tool_use_id: str


ServerBlock = (
    ServerToolUse
    | WebSearchFound
    | WebFetchFound
    | CodeFound
    | BashFound
    | EditorFound
    | ToolSearchFound
    | McpToolUse
    | McpFound
)
