"""Arguments of calls reach the client as the model wrote them."""

import json

import pytest

from router.text.call_arguments import casting_tools
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import template_for

HERMES = template_for("<|im_start|>")
QWEN_XML = template_for("<|im_start|> <tool_call>\n<function=")
NS = "]<]minimax[>["
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {
                "old": {"type": "string"},
                "note": OPTIONAL,
                "line": {"type": "integer"},
                "mode": {"enum": ["once", "all"]},
                "code": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "kind": {"type": ["string", "null"]},
                "place": {"$ref": "#/$defs/Place"},
                "colour": {"$ref": "#/$defs/Colour"},
                "level": {"enum": [1, 2.5]},
                "count": {"$ref": "#/properties/code/anyOf/1"},
                "tree": {"$ref": "#/$defs/Tree"},
                "self": {"$ref": "#/$defs/Self"},
            },
            "$defs": {
                "Place": {"type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}},
                "Colour": {"enum": ["red", "green"], "type": "string"},
                "Tree": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Tree"}}, {"type": "null"}]},
                "Self": {"$ref": "#/$defs/Self"},
            },
        },
    },
}


def arguments_of(template, said: str) -> dict[str, object]:
    (call,) = ReplyParser(template, "", [EDIT]).feed(said, ends=True).tool_calls
    return json.loads(call.arguments)


def in_xml(key: str, value: str) -> str:
    return f"<tool_call>\n<function=edit>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("value", ["    def f():\n        return 1\n", "x", "", " ", "\n\n", "\ta\n\n  b\n"])
def test_text__between_xml_marks__keeps_its_space(value: str) -> None:
    """Agents look for `old` in a file, indentation and all."""
    assert arguments_of(QWEN_XML, in_xml("old", value)) == {"old": value}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("line", " 7 ", 7),
        ("mode", "  once\n", "once"),
        ("note", "null", None),
        ("place", '{"x": 1}', {"x": 1}),
        ("colour", " red", "red"),
        ("level", "2.5", 2.5),
        ("count", "7", 7),
        ("tree", "[[], null]", [[], None]),
        ("self", " 7", " 7"),
        ("unknown", " 7", " 7"),
    ],
)
def test_value__between_xml_marks__is_what_its_schema_says(key: str, value: str, told: object) -> None:
    assert arguments_of(QWEN_XML, in_xml(key, value)) == {key: told}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("code", "00123", "00123"),
        ("kind", "None", "None"),
        ("note", "null", "null"),
        ("line", "7", 7),
        ("code", 7, 7),
        ("mode", " all", " all"),
    ],
)
def test_value__in_json__is_cast_only_where_it_is_not_what_its_schema_says(key: str, value: object, told) -> None:
    said = json.dumps({"name": "edit", "arguments": {key: value}})

    assert arguments_of(HERMES, f"<tool_call>{said}</tool_call>") == {key: told}


def test_schema__refers_to_itself_in_many_ways__is_read_once() -> None:
    """Else a reply would take for ever: ways through 2,000 definitions, each of which refers to the next ones twice."""
    definitions = {
        f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}, {"$ref": f"#/$defs/D{n + 2}"}]} for n in range(2000)
    } | {"D2000": {"$ref": "#/$defs/D0"}, "D2001": {"type": "integer"}}
    properties = {"last": {"$ref": "#/$defs/D1999"}} | {f"a{n}": {"$ref": f"#/$defs/D{n}"} for n in range(2000)}
    tool = {"function": {"name": "f", "parameters": {"properties": properties, "$defs": definitions}}}

    told = casting_tools([tool], in_json=False)[0]["function"]["parameters"]["properties"]

    assert len(told) == 2001
    assert told["last"] == {"type": ["integer"]}


@pytest.mark.parametrize(
    "given", ['"name": "edit"', '"name": "edit", "arguments": null', '"name": "edit", "arguments": ""']
)
def test_call__has_no_arguments__they_are_an_object(given: str) -> None:
    """Clients read what is passed to a tool as JSON, and have its schema say what that is."""
    assert arguments_of(HERMES, f"<tool_call>{{{given}}}</tool_call>") == {}


@pytest.mark.parametrize(
    ("chat_template", "said"),
    [
        ("<function_calls>", "<function_calls>edit(line='7', old='7')</function_calls>"),
        ("<|start_header_id|>", '{"name": "edit", "parameters": {"line": "7", "old": "7"}}'),
        ("<|tools_prefix|>", '<|tools_prefix|>[{"edit": {"line": "7", "old": "7"}}]<|tools_suffix|>'),
        (
            "\uff5cDSML\uff5c",
            '<\uff5cDSML\uff5cinvoke name="edit"><\uff5cDSML\uff5cparameter name="line" string="true">7'
            '</\uff5cDSML\uff5cparameter><\uff5cDSML\uff5cparameter name="old" string="false">7'
            "</\uff5cDSML\uff5cparameter></\uff5cDSML\uff5cinvoke>",
        ),
        (
            NS,
            f'{NS}<tool_call>{NS}<invoke name="edit">{NS}<line>7{NS}</line>{NS}<old>7{NS}</old>{NS}</invoke>'
            f"{NS}</tool_call>",
        ),
    ],
)
def test_value__of_any_form__is_what_its_schema_says(chat_template: str, said: str) -> None:
    assert arguments_of(template_for(chat_template), said) == {"line": 7, "old": "7"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"<place>{NS}<x>7{NS}</x>{NS}<name>7{NS}</name>{NS}</place>", {"place": {"x": 7, "name": "7"}}),
        (f"<tree>{NS}<item>[]{NS}</item>{NS}<item>null{NS}</item>{NS}</tree>", {"tree": [[], None]}),
        (f"<note>null{NS}</note>", {"note": None}),
        (f"<unknown>7{NS}</unknown>", {"unknown": 7}),
        ('<unknown>[{"a": 1}]' + f"{NS}</unknown>", {"unknown": [{"a": 1}]}),
    ],
)
def test_value__in_tags_of_its_name__is_what_its_schema_says_at_any_depth(said: str, told: object) -> None:
    call = f'{NS}<tool_call>{NS}<invoke name="edit">{NS}{said}{NS}</invoke>{NS}</tool_call>'

    assert arguments_of(template_for(NS), call) == told
