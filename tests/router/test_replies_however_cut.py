"""A reply that streams says what one in a piece does: from a model's tokens, cut anyhow, to the deltas of a chat."""

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pdmux_actor.messages import FinishReason, GenerateRequest, SampledToken, SamplingParams, Slo, TokenEvent
from pdmux_actor.serving.detokenizer import Vocabulary
from pdmux_actor.serving.frames import Delta
from pdmux_actor.serving.token_stream import TokenStream
from router.generation import Output, ReplyShape
from router.openai.chat_reply import ChatReply
from router.openai.reply import Choice, Usage, new_head
from router.serving.reply_reading import read_parts
from router.text.replies import OpenedReply
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import template_for
from router.text.worker import TextWorker

# By what a chat template says: parts of replies, whole and broken.
FAMILIES = {
    "<|im_start|> <tool_call>": [
        "<tool_call>",
        "</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>',
        "<tool_call>{no call</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": "\\"</tool_call>"}}</tool_call>',
        '"',
        "<tool_",
    ],
    "<think> <|tool_list_start|>": [
        "<|tool_call_start|>[f(x='é'), g()]<|tool_call_end|>",
        '<|tool_call_start|>[{"name": "f", "arguments": {}}]<|tool_call_end|>',
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "'",
    ],
    "<|open|><|sep|><|close|>": [
        "<|open|>think<|sep|>é<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" type="number"<|sep|>1'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "<|close|>message<|sep|><|end_of_msg|>",
        "<|open|>",
    ],
    "<mm:think> ]<]minimax[>[": [
        "</mm:think>",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<x>é]<]minimax[>[</x>'
        "]<]minimax[>[</invoke>",
        ']<]minimax[>[<invoke name="g">',
        "]<]minimax[>[</invoke>",
        "]<]minimax[>[</tool_call>",
        "]<]minimax[>[",
    ],
    "<think> <response> </response>": ["<response>", "</response>", "<|im_end|>", "<resp"],
    "<tool_call> <function=": [
        "<tool_call>\n<function=f>\n<parameter=x>\n  é\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>",
        "<function=f>",
        "<function=g>",
        "</parameter>",
        "</function>",
        "</tool_call>",
    ],
    "<|start_header_id|>": [
        '{"name": "f", "parameters": {"a": "ü"}}',
        '{"name": "f", "parameters": {}}{"name":',
        '{"name":',
        '{"name": "a", "b": 1}',
        "; ",
        "<|python_tag|>",
        "<|eom_id|>",
        "{",
    ],
    "[TOOL_CALLS]": ["[TOOL_CALLS]", '[{"name": "f", "arguments": {}}]', "</s>", "["],
    "[ARGS] [TOOL_CALLS]": ['[TOOL_CALLS]f[ARGS]{"a": "é"}', "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "{}", "</s>"],
    "<|channel|>": [
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        " to=functions.g<|channel|>commentary json<|message|>",
        " to=",
    ],
    "<|START_ACTION|>": [
        "<|START_THINKING|>é<|END_THINKING|>",
        '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": "é"}}\n]<|END_ACTION|>',
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|START_ACTION|>",
        "<|START_",
        "<|END_OF_TURN_TOKEN|>",
    ],
    "<tool_calls>": ["<tool_calls>", '[{"name": "f", "arguments": {}}]', "</tool_calls>", "<tool_call"],
    "<tool_call> <arg_key>": [
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value> é </arg_value>\n</tool_call>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
    ],
    "<seed:think> <seed:tool_call>": [
        "<seed:think>é</seed:think>",
        "<seed:tool_call>\n<function=f>\n<parameter=x>é</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>",
        "</function>",
    ],
    "<minimax:tool_call>": [
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">é</parameter>\n</invoke>\n</minimax:tool_call>',
        '<invoke name="g">',
        "</invoke>",
        "\n</minimax:tool_call>",
    ],
    "<\uff5ctool▁call▁begin\uff5c>": [
        "<\uff5ctool▁calls▁begin\uff5c>",
        '<\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>{"x": "é"}<\uff5ctool▁call▁end\uff5c>',
        "<\uff5ctool▁call▁begin\uff5c>",
        "<\uff5ctool▁calls▁end\uff5c>",
    ],
    "<\uff5ctool▁call▁begin\uff5c> ```json": [
        "<\uff5ctool▁calls▁begin\uff5c>",
        "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>f\n```json\n{}\n```<\uff5ctool▁call▁end\uff5c>",
        "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>",
        "\n```",
        "<\uff5ctool▁calls▁end\uff5c>",
    ],
    "<|tool_call_begin|>": [
        "<|tool_calls_section_begin|>",
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": "é"}<|tool_call_end|>',
        "<|tool_call_begin|>functions.f:",
        "<|tool_calls_section_end|>",
    ],
    "<|tools_prefix|>": ["<|tools_prefix|>", '[{"f": {"x": "é"}}, {"g": {}}]', "[1]", "<|tools_suffix|>"],
    "<start_function_call>": [
        "<start_function_call>call:f{x:<escape>é<escape>,n:1}<end_function_call>",
        "<start_function_call>",
        "call:g{}",
        "<end_function_call>",
        "<start_function_response>",
    ],
    "<|tool_call|>": ["<|tool_call|>", '[{"name": "f", "arguments": {}}]', "<|end_of_text|>"],
    "<|tool_call|> <|/tool_call|>": ["<|tool_call|>", '{"name": "f", "arguments": {}}', "<|/tool_call|>"],
    "functools[": ["functools", '[{"name": "f", "arguments": {}}]', "[", "<|end|>"],
    "<function_calls>": ["<function_calls>", "\nf(x='é', n=1)\n", "g()", "f(", "</function_calls>"],
    "<|header_start|> func_name1(": ['[f(x="é"), g()]', "[f(", "<|python_start|>", "<|python_end|>", "<|eot|>"],
    "<|header_start|>": ['{"name": "f", "parameters": {}}', "; ", "<|python_start|>", "<|python_end|>", "<|eom|>"],
    "calls in a single JSON array": ['[{"name": "f", "arguments": {"x": "é"}}]', '[{"name": ', "<|eot_id|>"],
    "<|START_OF_TURN_TOKEN|> Action:": [
        'Action: ```json\n[{"tool_name": "f", "parameters": {}}]\n```',
        "Action:",
        "```json",
        "]```",
    ],
    "<longcat_tool_call>": ["<longcat_tool_call>", '\n{"name": "f", "arguments": {}}\n', "</longcat_tool_call>"],
    "<|tool_call> <|channel>thought": [
        '<|tool_call>call:f{x:<|"|>é<|"|>,n:1}<tool_call|>',
        "<|channel>thought\n",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<turn|>",
    ],
    "<tool_sep{}> ':opensource'": [
        "<tool_calls:opensource>",
        "<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>x</arg_key:opensource>\n"
        "<arg_value:opensource>é</arg_value:opensource>\n</tool_call:opensource>",
        "<tool_call:opensource>",
        "</tool_calls:opensource>",
    ],
    "\uff5cDSML\uff5c": [
        "<\uff5cDSML\uff5cfunction_calls>",
        '<\uff5cDSML\uff5cinvoke name="f">\n<\uff5cDSML\uff5cparameter name="x" string="true">é'
        "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>",
        '<\uff5cDSML\uff5cinvoke name="g">',
        "</\uff5cDSML\uff5cinvoke>",
        "</\uff5cDSML\uff5cfunction_calls>",
    ],
    "<TOOLCALL>": ["<TOOLCALL>", '[{"name": "f", "arguments": {}}]', "</TOOLCALL>"],
}
ANYWHERE = [
    "<think>",
    "</think>",
    "<think>\né",
    "</think>\n\n日",
    "a",
    " ",
    "\n",
    "\n\n",
    "é",
    "👩‍👧",
    "<",
    "</",
    "<|im_end|>",
]
OPENED = ("", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n", "<|start|>assistant", "of another<think>")

Told = tuple[str, str, list[tuple[str, str]]]


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)] or [""]


def read(template, prompt_end: str, texts: Sequence[str]) -> Told:
    parser = ReplyParser(template, prompt_end, [])
    parts = [parser.feed(text, ends=place == len(texts) - 1) for place, text in enumerate(texts)]
    calls = [(call.name, call.arguments) for part in parts for call in part.tool_calls]
    return "".join(part.text for part in parts), "".join(part.reasoning for part in parts), calls


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), prompt_end=st.sampled_from(OPENED), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=60)
def test_reply__of_any_family_in_any_pieces__has_the_same_parts(family: str, data, prompt_end: str, cuts) -> None:
    template = template_for(f"{family} <think>")
    said = "".join(data.draw(st.lists(st.sampled_from([*FAMILIES[family], *ANYWHERE]), max_size=9)))

    whole = read(template, prompt_end, [said])

    assert read(template, prompt_end, pieces(said, cuts)) == whole
    assert read(template, prompt_end, [*said, ""]) == whole


def vocabulary(*, marks_are_special: bool) -> Vocabulary:
    """Bytes, tokens that end and begin inside characters, and marks."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "EN", "æĹ", "¥æ", "ĊĊ", '{"', "ink", "</", "><"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    add = tokenizer.add_special_tokens if marks_are_special else tokenizer.add_tokens
    add([AddedToken(m, special=marks_are_special) for m in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    return Vocabulary(tokenizer)


VOCABULARIES = {special: vocabulary(marks_are_special=special) for special in (False, True)}
SAID = [*FAMILIES["<|im_start|> <tool_call>"], *ANYWHERE, "</think>é", "</think>日", "END", "EN", "D"]


def deltas_of(token_ids: Sequence[int], sizes: Sequence[int], *, special: bool, stop: Sequence[str], shows: bool):
    """What a unit tells a gateway of these tokens, some of them together."""
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt_token_ids=(5,),
        sampling=SamplingParams(max_tokens=len(token_ids), logprobs=0),
        slo=Slo(ttft_s=1.0, tbt_s=1.0),
        stop=tuple(stop),
        skip_special_tokens=not special,
        shows_stop=shows,
    )
    told: list[Delta] = []
    stream = TokenStream(stream=1, request=request, vocabulary=VOCABULARIES[special], credit=1000, send=told.append)
    left = [SampledToken(token_id, -0.5) for token_id in token_ids]
    turn = 0
    while left and not stream.finished:
        size = sizes[turn % len(sizes)]
        new, left, turn = left[:size], left[size:], turn + 1
        stream.absorb(TokenEvent(request_id="r", tokens=tuple(new), finish=None if left else FinishReason.LENGTH))
    return told


async def outputs_of(deltas: Sequence[Delta], *, streams: bool) -> list[Output]:
    worker = TextWorker()

    async def ask(model: str, call, characters: int):
        return worker.answer(call)

    async def told():
        for delta in deltas:
            yield Output(
                text=delta.text,
                num_tokens=len(delta.token_ids),
                token_ids=tuple(delta.token_ids),
                logprobs=tuple(delta.logprobs or ()),
                unshown_tokens=0 if delta.text else len(delta.token_ids),
                finish=delta.finish,
                stop=delta.stop,
            )

    shape = ReplyShape(template=template_for("<|im_start|> <think> <tool_call>"), prompt_end="")
    reading = read_parts(told(), OpenedReply("m", shape, ask, 4.0), streams=streams, max_calls=None)
    return [output async for output in reading]


def chat_reply() -> ChatReply:
    return ChatReply(new_head("c", "m"), with_logprobs=True, usage_is_asked=False, prompt_token_ids=[5])


def streamed(outputs: Sequence[Output]) -> dict[str, object]:
    reply = chat_reply()
    lines = b"".join(reply.events(0, output, None) for output in outputs).decode().split("\n")
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: ")]
    deltas = [choice["delta"] for choice in choices]
    return {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning_content") or "" for delta in deltas),
        "calls": [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()],
        "logprobs": [one["bytes"] for c in choices if c["logprobs"] for one in c["logprobs"]["content"]],
        "tokens": [token_id for choice in choices for token_id in choice.get("token_ids") or ()],
        "end": (choices[-1]["finish_reason"], choices[-1]["stop_reason"]),
    }


def whole(outputs: Sequence[Output]) -> dict[str, object]:
    choice = Choice()
    for output in outputs:
        choice.add(output)
    (body,) = json.loads(chat_reply().document([choice], Usage(prompt_tokens=1, completion_tokens=1)))["choices"]
    message = body["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [call["function"] for call in message.get("tool_calls") or ()],
        "logprobs": [one["bytes"] for one in body["logprobs"]["content"]],
        "tokens": body["token_ids"],
        "end": (body["finish_reason"], body["stop_reason"]),
    }


@given(
    said=st.lists(st.sampled_from(SAID), min_size=1, max_size=9),
    odd=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 260)), max_size=2),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    special=st.booleans(),
    stop=st.lists(st.sampled_from(["END", "é", "\n\n", "日", "</think>", "a", "👩"]), max_size=2),
    shows=st.booleans(),
)
@settings(max_examples=250)
def test_chat__tokens_in_any_steps__deltas_say_what_the_document_does(said, odd, sizes, special, stop, shows) -> None:
    token_ids = VOCABULARIES[special].tokenizer.encode("".join(said)).ids
    for place, token_id in odd:  # halves of characters, too
        token_ids.insert(place % (len(token_ids) + 1), token_id)
    how = {"special": special, "stop": stop, "shows": shows}

    one_by_one = deltas_of(token_ids, [1], **how)
    document = whole(asyncio.run(outputs_of(one_by_one, streams=False)))

    assert streamed(asyncio.run(outputs_of(one_by_one, streams=True))) == document
    assert streamed(asyncio.run(outputs_of(deltas_of(token_ids, sizes, **how), streams=True))) == document


@pytest.mark.parametrize("flood", [" ", "\n", "</s>", "{ ", "<"])
@pytest.mark.parametrize("family", FAMILIES)
def test_reply__repeats_itself_without_end__is_read_in_a_time_that_grows_with_it(family: str, flood: str) -> None:
    """Models that go astray do: one such reply must not hold up the others, which one process reads."""
    said = "a" + flood * (1200 // len(flood))
    read(template_for(f"{family} <think>"), "", ["warm"])
    began_s = time.process_time()

    answer, _, calls = read(template_for(f"{family} <think>"), "", [said[i : i + 7] for i in range(0, len(said), 7)])

    assert time.process_time() - began_s < 0.4
    assert (answer.strip()[:1], calls) == ("a", [])
