"""How models write calls, by their chat templates."""

import pytest

from router.text.call_marks import call_marks
from router.text.reply_templates import template_for


@pytest.mark.parametrize(
    ("chat_template", "begin"),
    [
        ("nothing of tools", '<tool_call>\n{"name": "f", "arguments": '),
        ("<tool_call>", '<tool_call>\n{"name": "f", "arguments": '),
        ("<tool_call> <function=", "<tool_call>\n<function=f>\n"),
        ("<|start_header_id|>", '{"name": "f", "parameters": '),
        ("<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>"),
        (
            "<\uff5ctool▁call▁begin\uff5c> ```json",
            "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>f\n```json\n",
        ),
    ],
)
def test_call_marks__of_a_known_family__are_how_its_calls_begin(chat_template, begin) -> None:
    marks = call_marks(template_for(chat_template), {"<|im_end|>"})

    assert marks is not None
    assert marks.before_name + "f" + marks.after_name == begin
    assert begin.startswith(marks.trigger)


@pytest.mark.parametrize(
    ("template", "special"),
    [
        (template_for("[TOOL_CALLS]"), ()),  # a mark that is no text
        (template_for("<tool_call>"), ("<tool_call>",)),
        ({"fields": {"tool_calls": {"open": "<mine>", "close": "</mine>"}}}, ()),
        ({"fields": {"content": {}}}, ()),
    ],
)
def test_call_marks__special_tokens_or_another_way__are_not_known(template, special) -> None:
    assert call_marks(template, special) is None
