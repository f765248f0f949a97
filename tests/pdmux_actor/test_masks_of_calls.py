"""What masks of strict tools let through of a family's calls is read as calls."""

import json

import pytest
from test_structured_output import model  # noqa: F401  # a fixture

from router.openai.tools import FunctionTool, tool_use
from router.text.call_marks import call_marks
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import template_for

DSML = "\uff5cDSML\uff5c"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("chat_template", "said"),
    [
        (
            "<tool_call> <arg_key>",
            "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        ),
        ("<tool_call> <arg_key>", "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>Rome</arg_value></tool_call>"),
        (
            "<minimax:tool_call>",
            '<minimax:tool_call>\n<invoke name="{name}">\n<parameter name="{key}">Rome</parameter>\n</invoke>\n'
            "</minimax:tool_call>",
        ),
        (
            DSML,
            f'<{DSML}function_calls>\n<{DSML}invoke name="{{name}}">\n<{DSML}parameter name="{{key}}" string="true">'
            f"Rome</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>",
        ),
        (
            "<|tool_call_begin|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:12<|tool_call_argument_begin|>"
            '{{"{key}": "Rome"}}<|tool_call_end|><|tool_calls_section_end|>',
        ),
    ],
)
@pytest.mark.parametrize(
    ("name", "key", "passes"), [("weather", "city", True), ("weather", "town", False), ("other", "city", False)]
)
def test_mask__strict_tool__lets_through_what_is_read_as_a_call(
    model,  # noqa: F811  # the fixture
    chat_template,
    said,
    name,
    key,
    passes,
) -> None:
    function = {"name": "weather", "parameters": {**CITY, "additionalProperties": False}, "strict": True}
    tools = [FunctionTool.model_validate({"type": "function", "function": function})]
    template = template_for(chat_template)
    form = tool_use(tools, "auto", parallel=None).strict_calls(call_marks(template, ()))
    constraint = model.compiler.constraint(form, 0, ())
    text = "Sure." + said.format(name=name, key=key)
    read = ReplyParser(template, "", ()).feed(text, ends=True)

    assert constraint.follows([*model.tokenizer.encode(text).ids, *model.compiler.end_token_ids[:1]]) is passes
    assert read.text == "Sure."
    assert [(c.name, json.loads(c.arguments)) for c in read.tool_calls] == [(name, {key: "Rome"})]
