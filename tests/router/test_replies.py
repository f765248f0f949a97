"""Reading replies in a process that may be replaced at any time."""

import asyncio
import time
from dataclasses import replace

import pytest

from router.errors import TokenizerUnavailable
from router.generation import ReplyShape
from router.limits import GatewayLimits
from router.text.calls import ReadReply, TextAnswer, TextCall
from router.text.lane import TextProcess, TextProcessLost
from router.text.replies import Replies
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import forced_call, needs_special_tokens, template_for, without
from router.text.worker import TextWorker

TEMPLATE = template_for("<|im_start|> <think> <tool_call>")
TEXTS = [
    "<think>",
    "Pa",
    "ris?</thi",
    "nk>\n\n",
    "Let me ",
    'see.<tool_call>{"name": "f", "argu',
    'ments": {}}',
    "</tool_call>",
]
PARTS = ("Let me see.", "Paris?", ["f"])


class DyingService:
    """Dies under each read whose number is in `deaths`; a new one knows no reply."""

    def __init__(self, deaths: set[int], count: list[int]) -> None:
        self._desk = TextWorker()
        self._deaths = deaths
        self._count = count

    async def ask(self, call: TextCall) -> TextAnswer:
        if isinstance(call, ReadReply):
            self._count[0] += 1
            if self._count[0] in self._deaths:
                raise TextProcessLost
        return self._desk.answer(call)

    def worked_s(self) -> float:
        return 0.0

    def kill(self) -> None:
        """Nothing of it is left behind."""


def replies(deaths: set[int]) -> Replies:
    count = [0]

    async def start(niceness: int) -> DyingService:
        return DyingService(deaths, count)

    return Replies(GatewayLimits(), start=start)


async def read_all(reading: Replies, shape: ReplyShape, texts=TEXTS) -> tuple[str, str, list[str]]:
    reply = reading.opened("m", shape)
    parts = [p for i, text in enumerate(texts) for p in await reply.read([text], ends=i == len(texts) - 1)]
    names = [call.name for part in parts for call in part.tool_calls]
    return "".join(p.text for p in parts), "".join(p.reasoning for p in parts), names


@pytest.mark.parametrize("deaths", [set(), {1}, {3}, {5, 9}, {len(TEXTS)}])
async def test_reply__process_dies_at_any_read__every_part_comes_once(deaths) -> None:
    assert await read_all(replies(deaths), ReplyShape(template=TEMPLATE, prompt_end="")) == PARTS


async def test_reply__processes_keep_dying__503_in_place_of_silence() -> None:
    with pytest.raises(TokenizerUnavailable):
        await read_all(replies(set(range(1, 99))), ReplyShape(template=TEMPLATE, prompt_end=""))


async def test_reply__template_of_the_checkpoint_is_none__all_is_answer() -> None:
    broken = {"start_anchor": "x", "fields": {"content": {"content": "poem"}}}
    assert await read_all(replies(set()), ReplyShape(template=broken, prompt_end="")) == ("".join(TEXTS), "", [])


async def test_reply__real_process__reads_many_at_once() -> None:
    reading = Replies(GatewayLimits(), start=TextProcess.start)
    try:
        shape = ReplyShape(template=TEMPLATE, prompt_end="")
        assert await asyncio.gather(*(read_all(reading, shape) for _ in range(20))) == [PARTS] * 20
    finally:
        reading.close()


@pytest.mark.parametrize("space", [" ", "\n"])
@pytest.mark.parametrize(
    "chat_template", ["<|im_start|> <think> <tool_call>", "<|start_header_id|>", "<|START_ACTION|>", "<|tools_prefix|>"]
)
def test_reply__nothing_but_spaces_and_then_a_word__is_read_at_once(chat_template: str, space: str) -> None:
    said = "a" + space * 40_000 + "x"
    reply = ReplyParser(template_for(chat_template), "", [])
    before_s = time.process_time()
    parts = [reply.feed(said, ends=False), reply.feed("", ends=True)]

    assert "".join(part.text for part in parts) == said
    assert time.process_time() - before_s < 3  # it took 10 and more


async def test_reply__pattern_of_a_checkpoint_takes_for_ever__others_do_not_wait_for_it() -> None:
    slow = {"start_anchor": "x", "fields": {"content": {"close_pattern": r"(?:\s|\n)*<end>", "content": "text"}}}
    said = "\n" * 200_000 + "x"
    reading = Replies(replace(GatewayLimits(), template_timeout_s=0.5), start=TextProcess.start)
    clock = asyncio.get_running_loop().time
    try:
        first_s = clock()
        assert await read_all(reading, ReplyShape(template=slow, prompt_end=""), [said]) == (said, "", [])
        assert clock() - first_s < 9  # it took 15, and the lives of all other replies' process

        again = asyncio.create_task(read_all(reading, ReplyShape(template=slow, prompt_end=""), [said]))
        await asyncio.sleep(0.5)
        shape = ReplyShape(template=TEMPLATE, prompt_end="")
        other = reading.opened("other", shape)
        parts = [await other.read([text], ends=False) for text in TEXTS]
        assert "".join(part.reasoning for (part,) in parts) == "Paris?"
        assert not again.done()
        assert await again == (said, "", [])
    finally:
        reading.close()


@pytest.mark.parametrize(
    ("chat_template", "said", "expected"),
    [
        ("<|start_header_id|>", '{"name": "f", "parameters": {"x": 1}}', ("", "", ["f"])),
        ("<|start_header_id|>", '<|python_tag|>{"name": "f", "parameters": {}}<|eom_id|>', ("", "", ["f"])),
        (
            "<|start_header_id|>",
            '<|python_tag|>{"name": "f", "parameters": {"name": "; {"}}; '
            '{"name": "g", "parameters": {"of": [{"name": 1}]}}',
            ("", "", ["f", "g"]),
        ),
        (
            "<|start_header_id|>",
            '{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}; '
            '{"name": "h", "parameters": {}}<|eot_id|>',
            ("", "", ["f", "g", "h"]),
        ),
        (
            "<|start_header_id|>",
            '{"name": "f", "parameters": {}}{"name": "g"}',
            ('{"name": "f", "parameters": {}}{"name": "g"}', "", []),
        ),
        ("<|start_header_id|>", 'It is {"name": "Ann", "age": 3}.\n', ('It is {"name": "Ann", "age": 3}.\n', "", [])),
        ("<|start_header_id|>", '<|python_tag|>{"name": "f"}', ("", "", ["f"])),
        (
            "[TOOL_CALLS]",
            'Hi[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            ("Hi", "", ["f", "g"]),
        ),
        ("[ARGS] [TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}", ("", "", ["f", "g"])),
        ("[ARGS] [TOOL_CALLS]", '[TOOL_CALLS]f[ARGS]{"html": "<s>old</s>"}</s>', ("", "", ["f"])),
        ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "f", "arguments": {"html": "<s>old</s>"}}]</s>', ("", "", ["f"])),
        ("[TOOL_CALLS]", "<p><s>old</s> new</p>", ("<p><s>old</s> new</p>", "", [])),
        ("<|im_start|>", "Say <|im_end|> at last.<|im_end|>\n<|endoftext|>", ("Say <|im_end|> at last.", "", [])),
        (
            "[ARGS] [CALL_ID] [TOOL_CALLS]",
            "[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{}[TOOL_CALLS]g[CALL_ID]abcdefgh2[ARGS]{}",
            ("", "", ["f", "g"]),
        ),
        (
            "<tool_call>\n<function=",
            "<tool_call>\n<function=f>\n<parameter=x>\n7\n</parameter>\n</function>\n</tool_call>",
            ("", "", ["f"]),
        ),
        (
            "<tool_call>\n<function=",
            "I look.\n\n<function=f>\n<parameter=x>\n7\n</parameter>\n</function>\n</tool_call>",
            ("I look.", "", ["f"]),
        ),
        (
            "<tool_call>\n<function=",
            "<function=f>\n<parameter=x>\n7\n</parameter>\n</function>\n<function=g>\n</function>",
            ("", "", ["f", "g"]),
        ),
        ("<tool_call>\n<function=", "Say <function=NAME> first.", ("Say <function=NAME> first.", "", [])),
        ("{{ messages }}", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', ("", "", ["f"])),
        (
            "<|assistant|> <think> <tool_call> <arg_key>",
            "\n<think>Hm.</think>\nHi.\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
            "\n<tool_call>g\n</tool_call>",
            ("Hi.", "Hm.", ["f", "g"]),
        ),
        (
            "<seed:bos> <seed:think> <seed:tool_call> <function=",
            "<seed:think>Hm.</seed:think>Hi.\n<seed:tool_call>\n<function=f>\n<parameter=x>1</parameter>\n</function>\n"
            "</seed:tool_call>",
            ("Hi.", "Hm.", ["f"]),
        ),
        (
            "<|CHATBOT_TOKEN|> <|START_THINKING|> <|START_ACTION|>",
            '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
            '"parameters": {"x": 1}},\n    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
            ("", "Hm.", ["f", "g"]),
        ),
        (
            "<|CHATBOT_TOKEN|> <|START_THINKING|> <|START_ACTION|>",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi, <b>you</b>."
            "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
            ("Hi, <b>you</b>.", "Hm.", []),
        ),
        ("<|CHATBOT_TOKEN|> <|START_ACTION|>", "Hi.", ("Hi.", "", [])),
        (
            "<tool_calls>",
            'Hi.\n<tool_calls>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</tool_calls>',
            ("Hi.", "", ["f", "g"]),
        ),
        (
            "]~b]ai <minimax:tool_call> <think>",
            '<think>\nHm.\n</think>\n\nHi.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n'
            '</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call>',
            ("Hi.", "Hm.", ["f", "g"]),
        ),
        (
            "<|start_of_role|> <|tool_call|>",
            'Hi.<|tool_call|>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            ("Hi.", "", ["f", "g"]),
        ),
        (
            "<|start_header_id|> <TOOLCALL>",
            'Hi.\n<TOOLCALL>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</TOOLCALL>',
            ("Hi.", "", ["f", "g"]),
        ),
        (
            "Assistant <think> <\uff5ctool▁call▁begin\uff5c> ```json",
            "<think>\nHm.\n</think>\n\nHi.\n<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function"
            '<\uff5ctool▁sep\uff5c>f\n```json\n{"x": "```"}\n```<\uff5ctool▁call▁end\uff5c>\n'
            "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>g\n```json\n{}\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>"
            "<\uff5cend▁of▁sentence\uff5c>",
            ("Hi.", "Hm.", ["f", "g"]),
        ),
        (
            "Assistant <think> <\uff5ctool▁call▁begin\uff5c>",
            "Hi.<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>{}"
            "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>{}"
            "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
            ("Hi.", "", ["f", "function"]),
        ),
        (
            "<|tool_call_begin|> <think>",
            "<think>Hm.</think>Hi.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"x": 1}<|tool_call_end|><|tool_call_begin|> functions.g.h:1 <|tool_call_argument_begin|> {} '
            "<|tool_call_end|><|tool_calls_section_end|>",
            ("Hi.", "Hm.", ["f", "g.h"]),
        ),
        (
            "<|assistant_start|> <|inner_prefix|> <|tools_prefix|>",
            '<|inner_prefix|>Hm.<|inner_suffix|>Hi.<|tools_prefix|>[{"f": {"of": [{"a": {}}, {"b": 1}]}}, {"g": {}}]'
            "<|tools_suffix|>",
            ("Hi.", "Hm.", ["f", "g"]),
        ),
        (
            "<start_of_turn> <start_function_call>",
            '<start_function_call>call:f{x:<escape>{a:1}, "b"<escape>,n:[1,2],o:{deep:true}}<end_function_call>'
            "<start_function_call>call:g{}<end_function_call><start_function_response>",
            ("", "", ["f", "g"]),
        ),
        ("[/INST] [THINK]", "[THINK]Hm.[/THINK]Hi.", ("Hi.", "Hm.", [])),
        ("<|im_start|><think>", "no mark </think> closes nothing", ("no mark </think> closes nothing", "", [])),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_template_for__each_family__finds_calls_however_the_text_is_cut(
    chat_template, said, expected, step
) -> None:
    shape = ReplyShape(template=template_for(chat_template), prompt_end="")
    texts = [said[i : i + step] for i in range(0, len(said), step)]
    assert await read_all(replies(set()), shape, texts) == expected


HARMONY = template_for("<|start|>assistant<|channel|>final<|message|>")
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
BEGIN = "<|start|>assistant"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"{THOUGHT}{BEGIN}<|channel|>final<|message|>Paris.", ("Paris.", "Hm.", [])),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", ("{}", "", [])),
        ("<|channel|>analysis<|message|>Cut o", ("", "Cut o", [])),
        (
            f"{THOUGHT}{BEGIN}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{}}<|call|>",
            ("", "Hm.", ["f"]),
        ),
        (f"{THOUGHT}{BEGIN} to=functions.f<|channel|>commentary json<|message|>{{}}", ("", "Hm.", ["f"])),
        (
            "<|channel|>commentary<|message|>I look.<|end|>"
            f"{BEGIN}<|channel|>commentary to=functions.f<|message|>{{}}<|call|>"
            f"{BEGIN}<|channel|>commentary to=functions.g<|message|>{{}}<|call|>",
            ("I look.", "", ["f", "g"]),
        ),
        ("no channel, to=whom it may", ("no channel, to=whom it may", "", [])),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_reply__in_channels_of_gpt_oss__is_told_apart_however_the_text_is_cut(said, expected, step) -> None:
    shape = ReplyShape(template=HARMONY, prompt_end="<|start|>user<|message|>Hi<|end|><|start|>assistant")
    texts = [said[i : i + step] for i in range(0, len(said), step)]

    assert await read_all(replies(set()), shape, texts) == expected


async def test_reply__of_gpt_oss_that_may_call_nothing__has_no_headers_in_it() -> None:
    shape = ReplyShape(template=without(HARMONY, ("tool_calls",)), prompt_end=BEGIN)
    said = " to=functions.f<|channel|>commentary json<|message|>{}"

    assert await read_all(replies(set()), shape, list(said)) == ("{}", "", [])
    assert needs_special_tokens(HARMONY, ["<|channel|>"])


@pytest.mark.parametrize("prompt_end", ["<turn of mine>\n<think>\n", "]~b]ai\n<think>"])
async def test_reply__prompt_ends_in_the_mark_of_reasoning__begins_in_it_whoever_wrote_the_template(prompt_end) -> None:
    shape = ReplyShape(template=TEMPLATE, prompt_end=prompt_end)

    assert await read_all(replies(set()), shape, ["Hm.</think>", "\n\nHi"]) == ("Hi", "Hm.", [])


async def test_reply__prompt_has_opened_the_reasoning__begins_in_it() -> None:
    shape = ReplyShape(template=TEMPLATE, prompt_end="<|im_start|>assistant\n<think>\n")
    assert await read_all(replies(set()), shape, ["Hm.</think>", "\nHi", " \n"]) == ("Hi \n", "Hm.", [])


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    ("prompt_end", "before"),
    [
        ("<|im_start|>assistant\n", "\n<think>\nHm.\n</think>\n\n"),
        ("<|im_start|>assistant\n<think>\n", "Hm.</think>\n\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("another's<think>", "Hm.</think>"),
        ("", ""),
    ],
)
async def test_reply__speaks_of_marks_of_reasoning__they_stay_in_the_answer(prompt_end, before, step) -> None:
    said = "Use re.sub('<think>.*?</think>\\n', '', text), or <think>: "
    whole = before + said
    shape = ReplyShape(template=TEMPLATE, prompt_end=prompt_end)
    texts = [whole[i : i + step] for i in range(0, len(whole), step)]

    assert await read_all(replies(set()), shape, texts) == (said, "Hm." if before else "", [])


async def test_forced_call__list_of_calls__each_by_name() -> None:
    shape = ReplyShape(template=forced_call(None), prompt_end="")
    texts = list('[{"name": "f", "parameters": {}}, {"name": "g", "parameters": {}}]')
    assert await read_all(replies(set()), shape, texts) == ("", "", ["f", "g"])


@pytest.mark.parametrize("said", [r'{"a": "\ud800"}', r'"\ud800"'])
async def test_reply__call_holds_half_a_character__process_goes_on(said) -> None:
    reading = Replies(GatewayLimits(), start=TextProcess.start)
    try:
        reply = reading.opened("m", ReplyShape(template=TEMPLATE, prompt_end=""))
        (part,) = await reply.read([f'<tool_call>{{"name": "f", "arguments": {said}}}</tool_call>'], ends=True)
    finally:
        reading.close()

    assert [(call.name, call.arguments) for call in part.tool_calls] == [("f", said.strip('"'))]


@pytest.mark.parametrize("said", [r'"\ud800"', r'{"name": "\ud800"}'])
async def test_reply__half_a_character_in_what_is_no_call__is_answer(said) -> None:
    texts = [f"<tool_call>{said}</tool_call>"]

    answer, _, names = await read_all(replies(set()), ReplyShape(template=TEMPLATE, prompt_end=""), texts)

    assert r"\ud800" in "".join([answer, *names])
    assert "".join([answer, *names]).isascii()


def test_special_tokens__marks_among_them__are_needed_only_where_they_are_looked_for() -> None:
    mistral = template_for("[TOOL_CALLS]")

    assert needs_special_tokens(mistral, ["[TOOL_CALLS]", "</s>"])
    assert not needs_special_tokens(without(mistral, ("tool_calls",)), ["[TOOL_CALLS]", "</s>"])
    assert not needs_special_tokens(TEMPLATE, ["<|im_end|>"])
