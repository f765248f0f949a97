"""Tells how families of models write calls of tools: fields of response templates, chosen by their chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from router.text.tagged_call_forms import (
    DSML,
    DSML_END,
    GLM,
    HUNYUAN_3,
    HUNYUAN_3_END,
    MINICPM_5,
    MINIMAX,
    MINIMAX_M3,
    MINIMAX_M3_END,
    NAMED_CALL,
    QWEN_XML,
    SEED,
    STEP_3,
    STEP_3_END,
)

_CALLS, DEEPSEEK_ONE, DEEPSEEK_SEP, DEEPSEEK_ONE_END, _CALLS_END = (  # DeepSeek's, whose bars have full width
    f"<\uff5ctool▁{word}\uff5c>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)
_CALL: Mapping[str, Any] = {"type": "function", "function": "{content}"}

HERMES: Mapping[str, Any] = {  # Qwen 2.5 and 3, too
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
# Several follow one another, with `; ` or space between. Where an object ends and the next one begins, no call goes on:
# JSON has a comma there, and in its strings quotes are escaped. With nothing between, a call would end where it begins.
# An object with a name and without parameters after it is somebody's data, unless it has the mark.
LLAMA_3: Mapping[str, Any] = {
    "open_pattern": r"<\|python_tag\|>\s*(?=\{\s*\"name\"\s*:)"
    r"|(?=\{\s*\"name\"\s*:\s*\"(?:[^\"\\]|\\.)*\"\s*,\s*\"(?:parameters|arguments)\"\s*:)",
    "close_pattern": r"(?<=\})(?:\s*;\s*|\s+)(?=\{\s*\"name\"\s*:)|<\|(?:eot|eom)_id\|>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
_MISTRAL: Mapping[str, Any] = {
    "open": "[TOOL_CALLS]",
    "close_pattern": r"</s>\s*\Z",
    "content": "json",
    "transform": _CALL,
}
_MISTRAL_ARGS: Mapping[str, Any] = {
    "open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\{]+)(?:\[CALL_ID\][^\[\{]*)?\[ARGS\]",
    "close_pattern": r"(?=\[TOOL_CALLS\])|</s>\s*\Z",
    "repeats": True,
    "content": "json",
    "transform": NAMED_CALL,
}

_GRANITE: Mapping[str, Any] = {
    "open_pattern": r"\s*<\|tool_call\|>",
    "close": "<|end_of_text|>",
    "content": "json",
    "transform": _CALL,
}
_NEMOTRON: Mapping[str, Any] = {
    "open_pattern": r"\s*<TOOLCALL>",
    "close": "</TOOLCALL>",
    "repeats": True,
    "content": "json",
    "transform": _CALL,
}
_LISTED: Mapping[str, Any] = {  # Jamba, Hunyuan A13B
    "open_pattern": r"\s*<tool_calls>",
    "close": "</tool_calls>",
    "content": "json",
    "transform": _CALL,
}
DEEPSEEK: Mapping[str, Any] = {  # since V3.1
    "open_pattern": rf"(?:{_CALLS}\s*)?{DEEPSEEK_ONE}\s*(?P<name>[^\s<]+)\s*{DEEPSEEK_SEP}",
    "close": DEEPSEEK_ONE_END,
    "repeats": True,
    "content": "json",
    "transform": NAMED_CALL,
}
DEEPSEEK_FENCED: Mapping[str, Any] = {
    "open_pattern": rf"(?:{_CALLS}\s*)?{DEEPSEEK_ONE}\s*function{DEEPSEEK_SEP}"
    r"(?P<name>[^\s<]+)\s*```json\s",
    "close_pattern": rf"\s*```\s*{DEEPSEEK_ONE_END}",
    "repeats": True,
    "content": "json",
    "transform": NAMED_CALL,
}
KIMI: Mapping[str, Any] = {
    "open_pattern": r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?"
    r"(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
    "close": "<|tool_call_end|>",
    "repeats": True,
    "content": "json",
    "transform": NAMED_CALL,
}
# Apertus writes `[{"NAME": ARGUMENTS}, ...]`: https://github.com/swiss-ai/apertus_format, docs/format.md
APERTUS: Mapping[str, Any] = {
    "open_pattern": r"\s*<\|tools_prefix\|>",
    "close": "<|tools_suffix|>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"by_name": "{content}"}},
}
# Keys have no quotes, texts stand between two `<escape>`: https://ai.google.dev/gemma/docs/functiongemma
_FUNCTION_GEMMA: Mapping[str, Any] = {
    "open_pattern": r"\s*<start_function_call>\s*call:(?P<name>[^\s\{<]+)(?=\{)",
    "close": "<end_function_call>",
    "repeats": True,
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
    "transform": NAMED_CALL,
}
# As FunctionGemma, with other marks: https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4
_GEMMA_4: Mapping[str, Any] = {
    "open_pattern": r"\s*<\|tool_call>\s*call:(?P<name>[^\s\{<]+)(?=\{)",
    "close": "<tool_call|>",
    "repeats": True,
    "content": "json",
    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
    "transform": NAMED_CALL,
}
# OLMo 3 writes calls as Python's, each on a line: vllm-project/vllm, examples/tool_chat_template_olmo3.jinja.
_AS_PYTHON: Mapping[str, Any] = {"type": "function", "function": {"as_python": "{content}"}}
_OLMO_3: Mapping[str, Any] = {
    "open_pattern": r"\s*<function_calls>",
    "close": "</function_calls>",
    "repeats": True,
    "content": "json",
    "transform": _AS_PYTHON,
}
# A list of such calls, and nothing else: vllm-project/vllm, examples/tool_chat_template_llama4_pythonic.jinja.
_PYTHON_LIST: Mapping[str, Any] = {
    "open_pattern": r"\A\s*(?:<\|python_start\|>\s*)?(?=\[\s*[A-Za-z_][\w.:/-]*\()",
    "close_pattern": r"<\|(?:python_end|eot|eom|eot_id|eom_id)\|>",
    "content": "json",
    "transform": _AS_PYTHON,
}
_LLAMA_4: Mapping[str, Any] = {  # vllm-project/vllm, examples/tool_chat_template_llama4_json.jinja
    **LLAMA_3,
    "open_pattern": LLAMA_3["open_pattern"].replace("python_tag", "python_start"),
    "close_pattern": LLAMA_3["close_pattern"].replace(r"<\|(?:eot|eom)_id\|>", r"<\|(?:python_end|eot|eom)\|>"),
}
# A list of calls, and nothing else: vllm-project/vllm, examples/tool_chat_template_xlam_qwen.jinja.
_XLAM: Mapping[str, Any] = {
    "open_pattern": r"\A\s*(?=\[\s*\{\s*\"name\"\s*:\s*\"(?:[^\"\\]|\\.)*\"\s*,\s*\"arguments\"\s*:)",
    "close_pattern": r"<\|(?:im_end|eot_id)\|>",
    "content": "json",
    "transform": _CALL,
}
# With the template of llama.cpp (models/templates/llama-cpp-microsoft-Phi-4-mini-instruct.jinja), and with that of vLLM
# (examples/tool_chat_template_phi4_mini.jinja).
_PHI_4_MINI: Mapping[str, Any] = {**_GRANITE, "close": "<|/tool_call|>", "repeats": True}
_FUNCTOOLS: Mapping[str, Any] = {
    "open_pattern": r"\s*functools(?=\[\s*\{)",
    "close_pattern": r"<\|end\|>",
    "content": "json",
    "transform": _CALL,
}
# Command R and R+: llama.cpp, models/templates/CohereForAI-c4ai-command-r-plus-tool_use.jinja.
_COMMAND_R: Mapping[str, Any] = {
    "open_pattern": r"\s*Action:\s*```json\s",
    "close_pattern": r"(?<=\])\s*```",
    "content": "json",
    "transform": _CALL,
}
_LONGCAT: Mapping[str, Any] = {  # sgl-project/sglang, function_call/longcat_detector
    **HERMES,
    "open_pattern": r"\s*<longcat_tool_call>",
    "close": "</longcat_tool_call>",
}

# llama.cpp, models/templates/LFM2.5-8B-A1B.jinja; in llama-cpp-lfm2.jinja, of its predecessor, the calls are JSON.
_LFM_2: Mapping[str, Any] = {
    **_OLMO_3,
    "open_pattern": r"\s*<\|tool_call_start\|>",
    "close": "<|tool_call_end|>",
}
_INTERNLM: Mapping[str, Any] = {  # vllm-project/vllm, examples/tool_chat_template_internlm2_tool.jinja
    **HERMES,
    "open_pattern": r"\s*<\|action_start\|>\s*<\|plugin\|>",
    "close": "<|action_end|>",
}

# By what a chat template says, all of it: the first that fits.
_TOOLS_BY_MARKS: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]] = (
    ((DEEPSEEK_ONE, "```json"), DEEPSEEK_FENCED),
    ((DEEPSEEK_ONE,), DEEPSEEK),
    (("\uff5cDSML\uff5c",), DSML),
    (("<|tool_call_begin|>",), KIMI),
    (("]<]minimax[>[",), MINIMAX_M3),
    (("<steptml:",), STEP_3),
    (("<|tool_call_start|>",), _LFM_2),
    (("<|tool_list_start|>",), _LFM_2),
    (("<|action_start|>",), _INTERNLM),
    (("<function name=", "<param name="), MINICPM_5),
    (("<|tools_prefix|>",), APERTUS),
    (("<start_function_call>",), _FUNCTION_GEMMA),
    (("<seed:tool_call>",), SEED),
    (("<TOOLCALL>",), _NEMOTRON),
    (("<|tool_call>",), _GEMMA_4),
    (("<|/tool_call|>",), _PHI_4_MINI),
    (("<|tool_call|>",), _GRANITE),
    (("functools[",), _FUNCTOOLS),
    (("<minimax:tool_call>",), MINIMAX),
    (("<tool_sep",), HUNYUAN_3),
    (("<arg_key>",), GLM),
    (("<longcat_tool_call>",), _LONGCAT),
    (("<function_calls>",), _OLMO_3),
    (("<function=",), QWEN_XML),
    (("<tool_call>",), HERMES),
    (("<tool_calls>",), _LISTED),
    (("[ARGS]",), _MISTRAL_ARGS),
    (("[TOOL_CALLS]",), _MISTRAL),
    (("<|START_OF_TURN_TOKEN|>", "Action:"), _COMMAND_R),
    (("func_name1(",), _PYTHON_LIST),
    (("calls in a single JSON array",), _XLAM),
    (("<|header_start|>",), _LLAMA_4),
    (("<|start_header_id|>",), LLAMA_3),
)
# Of forms with a pair of outer marks around all calls the second one. The first belongs to the first call.
_ENDS: Sequence[tuple[Mapping[str, Any], str]] = (
    (DEEPSEEK, _CALLS_END),
    (DEEPSEEK_FENCED, _CALLS_END),
    (KIMI, r"<\|tool_calls_section_end\|>"),
    (MINIMAX, "</minimax:tool_call>"),
    (MINIMAX_M3, MINIMAX_M3_END),
    (STEP_3, STEP_3_END),
    (DSML, DSML_END),
    (HUNYUAN_3, HUNYUAN_3_END),
    (_GEMMA_4, r"<\|tool_response>"),
    (_FUNCTION_GEMMA, "<start_function_response>"),
)


def calls_of(chat_template: str, *, knows_tools: bool = True) -> Mapping[str, Any]:
    """Chooses Hermes' form where nothing in the chat template says another, or where it knows no tools: that is how
    tools are described to such a model (tool_prompt.py).
    """
    if not knows_tools:
        return HERMES
    found = (calls for marks, calls in _TOOLS_BY_MARKS if all(mark in chat_template for mark in marks))
    return next(found, HERMES)


def end_of_all(calls: Mapping[str, Any]) -> str | None:
    """Returns a pattern of what follows the last call; None: nothing does."""
    return next((end for form, end in _ENDS if form == calls), None)
