"""Calls as families of models write them, in replies that stream in any pieces, and answers that only speak of them."""

import json

import pytest

from router.text.python_calls import python_calls
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import needs_special_tokens, template_for

DSML = "\uff5cDSML\uff5c"
HY_3 = "{%- set HYTK = ':opensource' %}{{ '<think{}>'.format(HYTK) }}{{ '<tool_sep{}>'.format(HYTK) }}<arg_key{}>"
NS = "]<]minimax[>["
K3 = "<|open|>{{ tag }}<|sep|> <|close|>"
ERNIE = "<|im_start|> <think> <response>\n</response> <tool_call>"
HUNYUAN_A13B = "<|extra_0|> <think> <answer> </answer> <tool_calls>"
GEMMA_4 = "{{ '<|turn>model\\n' }}<|tool_call>{{ '<|channel>thought\\n<channel|>' }}"


def hy(name: str) -> str:
    return f"<{name}:opensource>"


def told(
    chat_template: str, said: str, step: int, prompt_end: str | None = None
) -> tuple[str, str, list[tuple[str, object]]]:
    if prompt_end is None:
        prompt_end = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>' if chat_template == K3 else ""
    parser = ReplyParser(template_for(chat_template), prompt_end, [])
    texts = [said[i : i + step] for i in range(0, len(said), step)]
    parts = [parser.feed(text, ends=place == len(texts) - 1) for place, text in enumerate(texts)]
    calls = [(call.name, json.loads(call.arguments)) for part in parts for call in part.tool_calls]
    return "".join(p.text for p in parts), "".join(p.reasoning for p in parts), calls


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("chat_template", "said", "expected"),
    [
        (
            "<|im_start|> <function_calls> <think>",
            '<think>Hm.</think>\n\nHi.\n<function_calls>\nf(x="a\\nb", n=[1, 2.5])\ng(y=true, z=null)\n'
            "</function_calls><|im_end|>",
            ("Hi.", "Hm.", [("f", {"x": "a\nb", "n": [1, 2.5]}), ("g", {"y": True, "z": None})]),
        ),
        (
            f"<think> {DSML}",
            f'<think>Hm.</think>Hi.\n\n<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="x" '
            f'string="true"> a\nb</{DSML}parameter>\n</{DSML}invoke>\n<{DSML}invoke name="g">\n</{DSML}invoke>\n'
            f"</{DSML}function_calls><\uff5cend▁of▁sentence\uff5c>",
            ("Hi.", "Hm.", [("f", {"x": " a\nb"}), ("g", {})]),
        ),
        (
            DSML,  # V4.1
            f'Hi.\n\n<{DSML} calls>\n<{DSML} invoke name="f">\n<{DSML} parameter name="x" string="true">a'
            f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>",
            ("Hi.", "", [("f", {"x": "a"})]),
        ),
        (
            GEMMA_4,
            '<|channel>thought\nHm.\n<channel|>Hi.<|tool_call>call:f{x:<|"|>{a:1}, "b"<|"|>,n:[1,2],o:{deep:true}}'
            "<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>",
            ("Hi.", "Hm.", [("f", {"x": '{a:1}, "b"', "n": [1, 2], "o": {"deep": True}}), ("g", {})]),
        ),
        (GEMMA_4, "<|channel>thought\n<channel|>Hi.<turn|>", ("Hi.", "", [])),
        (
            HY_3,
            f"{hy('think')}Hm.{hy('/think')}Hi.{hy('tool_calls')}\n{hy('tool_call')}f{hy('tool_sep')}\n{hy('arg_key')}x"
            f"{hy('/arg_key')}\n{hy('arg_value')}a b{hy('/arg_value')}\n{hy('/tool_call')}\n{hy('tool_call')}g"
            f"{hy('tool_sep')}\n{hy('/tool_call')}\n{hy('/tool_calls')}",
            ("Hi.", "Hm.", [("f", {"x": "a b"}), ("g", {})]),
        ),
        (
            "<think> <tool_calls> <tool_sep> <arg_key>",
            "<think>Hm.</think><tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>x</arg_key>\n<arg_value>a</arg_value>\n"
            "</tool_call>\n</tool_calls>",
            ("", "Hm.", [("f", {"x": "a"})]),
        ),
        ("<|header_start|> func_name1(", '[f(x="a"), g()]<|eot|>', ("", "", [("f", {"x": "a"}), ("g", {})])),
        (
            "<|header_start|> func_name1(",
            "<|python_start|>[f(x='a')]<|python_end|><|eot|>",
            ("", "", [("f", {"x": "a"})]),
        ),
        (
            "<|header_start|>",
            '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}<|eot|>',
            ("", "", [("f", {}), ("g", {})]),
        ),
        (
            "<|header_start|>",
            '<|python_start|>{"name": "f", "parameters": {}}<|python_end|><|eom|>',
            ("", "", [("f", {})]),
        ),
        (
            "When using tools, make calls in a single JSON array:",
            '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]<|im_end|>',
            ("", "", [("f", {"x": 1}), ("g", {})]),
        ),
        (
            "<|tool|> <|tool_call|> <|/tool_call|>",
            'Hi.<|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|><|tool_call|>[{"name": "g", "arguments": {}}]'
            "<|/tool_call|>",
            ("Hi.", "", [("f", {}), ("g", {})]),
        ),
        (
            "formatted as functools[{",
            ' functools[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]<|end|>',
            ("", "", [("f", {}), ("g", {})]),
        ),
        (
            "<|START_OF_TURN_TOKEN|> Action:\n```json",
            'I look.\nAction: ```json\n[\n {\n        "tool_name": "f",\n        "parameters": {"c": "```sh"}\n    }\n'
            "]\n```",
            ("I look.", "", [("f", {"c": "```sh"})]),
        ),
        (
            "<longcat_tool_call>",
            'Hi.\n<longcat_tool_call>\n{"name": "f", "arguments": {}}\n</longcat_tool_call><longcat_tool_call>\n'
            '{"name": "g", "arguments": {}}\n</longcat_tool_call>',
            ("Hi.", "", [("f", {}), ("g", {})]),
        ),
        (
            "<|im_start|> <think> <|tool_list_start|>",
            "<think>Hm.</think>Hi.<|tool_call_start|>[f(x='a\nb', n=1), g()]<|tool_call_end|><|im_end|>",
            ("Hi.", "Hm.", [("f", {"x": "a\nb", "n": 1}), ("g", {})]),
        ),
        (
            "<|im_start|> <|tool_call_start|>",
            '<|tool_call_start|>[{"name": "f", "arguments": {"x": 1}}]<|tool_call_end|>Hi.<|im_end|>',
            ("Hi.", "", [("f", {"x": 1})]),
        ),
        (
            "<|im_start|> <|action_start|><|plugin|>",
            'Hi.<|action_start|><|plugin|>\n{"name": "f", "parameters": {"x": "<|action_end|>"}}'
            "<|action_end|><|im_end|>",
            ("Hi.", "", [("f", {"x": "<|action_end|>"})]),
        ),
        (
            "<think> <steptml:invoke",
            "<think>Hm.</think>Hi.<\uff5ctool_calls_begin\uff5c>\n<\uff5ctool_call_begin\uff5c>function"
            '<\uff5ctool_sep\uff5c><steptml:invoke name="f">\n<steptml:parameter name="x">a b</steptml:parameter>\n'
            "</steptml:invoke><\uff5ctool_call_end\uff5c>\n<\uff5ctool_calls_end\uff5c>",
            ("Hi.", "Hm.", [("f", {"x": "a b"})]),
        ),
        (
            '<function name="{{ n }}"><param name="{{ k }}">',
            'Hi.\n<function name="f"><param name="x">a</param><param name="y"><![CDATA[<b>\n]]></param></function>'
            '<function name="g"></function>',
            ("Hi.", "", [("f", {"x": "a", "y": "<b>\n"}), ("g", {})]),
        ),
        (
            f"<mm:think> {NS}",
            f'<mm:think>Hm.</mm:think>Hi.\n{NS}<tool_call>\n{NS}<invoke name="f">\n{NS}<x>a < b{NS}</x>{NS}<o>{NS}<k>1'
            f"{NS}</k>{NS}<l>{NS}<item>007{NS}</item>{NS}<item>true{NS}</item>{NS}</l>{NS}</o>\n{NS}</invoke>\n"
            f'{NS}<invoke name="g">{NS}</invoke>\n{NS}</tool_call>',
            ("Hi.", "Hm.", [("f", {"x": "a < b", "o": {"k": 1, "l": ["007", True]}}), ("g", {})]),
        ),
        (f"<mm:think> {NS}", "</mm:think>Hi.", ("Hi.", "", [])),
        (
            K3,
            "Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi.<|close|>response<|sep|><|open|>tools<|sep|>"
            '<|open|>call tool="f" index="1"<|sep|>'
            '<|open|>argument key="x" type="string"<|sep|>7 < 8<|close|>argument<|sep|>'
            '<|open|>argument key="n" type="number"<|sep|>7<|close|>argument<|sep|><|close|>call<|sep|><|open|>call '
            'tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>',
            ("Hi.", "Hm.", [("f", {"x": "7 < 8", "n": 7}), ("g", {})]),
        ),
        (
            f"{DSML}",
            f'<{DSML}invoke name="f"><{DSML}parameter name="x" string="false">[1, {{"a": null}}]</{DSML}parameter>'
            f'<{DSML}parameter name="y" string="true">7</{DSML}parameter><{DSML}parameter name="z" string="false">oops'
            f"</{DSML}parameter></{DSML}invoke>",
            ("", "", [("f", {"x": [1, {"a": None}], "y": "7", "z": "oops"})]),
        ),
        (
            "<tool_call>",
            'Hi.<tool_call>{"name": "f", "arguments": {"x": "a \\"</tool_call> b"}}</tool_call>'
            '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
            ("Hi.", "", [("f", {"x": 'a "</tool_call> b'}), ("g", {})]),
        ),
        (ERNIE, "<think>\nHm.\n</think>\n\n<response>\nHi.\n</response>\n<|im_end|>", ("Hi.", "Hm.", [])),
        (ERNIE, "<response>\nHi <response>.\n</response>\n", ("Hi <response>.", "", [])),
        (ERNIE, "<think>Hm.</think>Hi.", ("Hi.", "Hm.", [])),
        (HUNYUAN_A13B, "<think>\nHm.\n</think>\n<answer>\nHi.\n</answer>", ("Hi.", "Hm.", [])),
        (
            HUNYUAN_A13B,
            '<think>Hm.</think><answer>\nHi.\n<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>\n</answer>',
            ("Hi.", "Hm.", [("f", {})]),
        ),
    ],
)
def test_reply__of_the_family__has_its_calls_in_any_pieces(chat_template, said, expected, step) -> None:
    assert told(chat_template, said, step) == expected


def test_hunyuan_3__prompt_has_opened_the_thoughts__reply_begins_in_them() -> None:
    said = f"Hm.{hy('/think')}Hi."

    assert told(HY_3, said, 1, f"<\uff5chy_Assistant:opensource\uff5c>{hy('think')}") == ("Hi.", "Hm.", [])


def test_hunyuan_3__its_marks_are_special_tokens__units_must_show_them() -> None:
    assert needs_special_tokens(template_for(HY_3), [hy("tool_call")])


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("chat_template", "said"),
    [
        ("<tool_call>", "Qwen says <tool_call> and </tool_call>, with JSON between.\n"),
        ("<tool_call>", "a  <tool_call>{no call</tool_call>  b"),
        ("<tool_call> <function=", "Write <tool_call>\n<function=NAME>, then <parameter=KEY>, then the value"),
        ("<tool_call> <arg_key>", "GLM says <tool_call>NAME, then <arg_key>KEY</arg_key> and so on"),
        ("<minimax:tool_call>", 'Begin with <minimax:tool_call> and <invoke name="NAME">, end with both closed.'),
        ("<function_calls>", "Put it between <function_calls> and </function_calls>: f(x=1)."),
        ("<function_calls>", "<function_calls>f(1)</function_calls>"),
        (DSML, f'It begins with <{DSML}function_calls> and <{DSML}invoke name="f">.'),
        (GEMMA_4, "Say <|tool_call>call:NAME and <tool_call|>"),
        (HY_3, f"Say {hy('tool_calls')} and {hy('tool_call')}f{hy('tool_sep')} first"),
        ("<|header_start|> func_name1(", 'It is [f(x="a")].'),
        ("<|header_start|> func_name1(", "[see(this) one](http://a)"),
        ("calls in a single JSON array", '[{"name": "Ann", "age": 3}]'),
        ("calls in a single JSON array", 'Say [{"name": "f", "arguments": {}}]'),
        ("formatted as functools[{", "import functools"),
        ("<|START_OF_TURN_TOKEN|> Action:", "Action: go.\n```json\n[]\n```"),
        ("<longcat_tool_call>", "Put it in <longcat_tool_call> marks."),
        ("<tool_call>", 'Say "<tool_call>{" and </tool_call>, b'),
        ("<tool_call>", '<tool_call>{no "call</tool_call> b'),
        ("<|tool_list_start|>", "Between <|tool_call_start|> and <|tool_call_end|>."),
        ("<think> <answer> </answer>", "<answer>7</answer>"),
        (f"<mm:think> {NS}", f'It is {NS}<tool_call> and {NS}<invoke name="f">.'),
        ('<function name=" <param name="', 'Write <function name="f"> first.'),
        ("<|tool_call|> <|/tool_call|>", "Between <|tool_call|> and <|/tool_call|>."),
    ],
)
def test_answer__speaks_of_the_marks__is_shown_as_it_was_said(chat_template, said, step) -> None:
    assert told(chat_template, said, step) == (said, "", [])


def test_call__quotes_do_not_close__mark_is_its_end_once_nothing_follows() -> None:
    said = 'a <tool_call>{"x: 1}</tool_call> b <tool_call>{"name": "f", "arguments": {}}</tool_call>'

    assert told("<tool_call>", said, 3) == ('a <tool_call>{"x: 1}</tool_call> b', "", [("f", {})])


def test_kimi_k3__does_not_think__answer_begins_with_the_reply() -> None:
    opened = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'

    assert told(K3, "Hi.<|close|>response<|sep|><|close|>message<|sep|>", 1, opened) == ("Hi.", "", [])


@pytest.mark.parametrize(
    ("chat_template", "token"),
    [
        *((K3, token) for token in ("<|open|>", "<|sep|>", "<|close|>")),
        (NS, NS),
        *(("<steptml:", f"<\uff5c{word}\uff5c>") for word in ("tool_call_begin", "tool_sep", "tool_call_end")),
        *(("<|tool_list_start|>", token) for token in ("<|tool_call_start|>", "<|tool_call_end|>")),
        *(("<|action_start|>", token) for token in ("<|action_start|>", "<|plugin|>", "<|action_end|>")),
    ],
)
def test_marks__are_special_tokens__units_must_show_them(chat_template, token) -> None:
    assert needs_special_tokens(template_for(chat_template), [token])


def test_answer__speaks_of_marks_after_a_call__both_are_there() -> None:
    said = '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>oops</tool_call> b'

    assert told("<tool_call>", said, 3) == ("\n<tool_call>oops</tool_call> b", "", [("f", {})])


@pytest.mark.parametrize(
    ("chat_template", "said"),
    [
        ("<tool_call> <function=", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\nhal"),
        ("<tool_call> <arg_key>", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>y</arg_"),
        ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n<para'),
    ],
)
def test_call__values_between_marks_are_cut_off__is_text_and_no_call_of_what_is_there(chat_template, said) -> None:
    assert told(chat_template, said, 5) == (said, "", [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("f()", [("f", {})]),
        ("[a.b-c(from='x', x=-1.5e3, y=07,)]", [("a.b-c", {"from": "x", "x": -1500.0, "y": 7})]),
        ('f(t="""a\n"b" c""", u=\'it"s\')', [("f", {"t": 'a\n"b" c', "u": 'it"s'})]),
        ("f(x='a\nb', y='\\u00e9\\d\\x41\\\\')", [("f", {"x": "a\nb", "y": "é\\dA\\"})]),
        ("f(x={'k': [True, (1, None)]}); g()", [("f", {"x": {"k": [True, [1, None]]}}), ("g", {})]),
    ],
)
def test_python_calls__as_models_write_them__have_names_and_values(text, calls) -> None:
    assert [(call["name"], call["arguments"]) for call in python_calls(text) or ()] == calls


@pytest.mark.parametrize(
    "text",
    [
        *("f(1)", "f(x=1", "f(x=1))", "f(x=y)", "f(x=1y)", "see f(x=1)", "[f(x=1)", "f(x='a)", "{}", "f(x=1e999)"),
        "f(x=" + "[" * 100_000,
        "f(x=" + "9" * 5_000 + ")",
        "f(x='\\UFFFFFFFF')",
    ],
)
def test_python_calls__anything_else__are_none(text) -> None:
    assert python_calls(text) is None
