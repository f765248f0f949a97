"""gpt-oss with a form of its output: it thinks first, and the mask begins with the answer."""

import json
from pathlib import Path

import numpy as np
import openai
import pytest
from fake_unit import FakeUnit, write_byte_tokenizer
from sdk_of_fleet import sdk_of
from tokenizers import AddedToken, Tokenizer

from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.executor.structured_output import FormCompiler
from pdmux_actor.messages import StructuredKind, StructuredOutput
from router.text.harmony_template import before_answer

MODEL = "demo/bytes"
MARKS = ["<|return|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>"]
IDS = {mark: 257 + place for place, mark in enumerate(MARKS)}  # <eos> is 256
COMPILER = FormCompiler(
    [*(bytes([byte]) for byte in range(256)), *[b""] * 8],
    frozenset({IDS["<|return|>"], IDS["<|call|>"]}),
    vocab_size=264,
)
THOUGHT = '<|channel|>analysis<|message|>A "name"; {no} form.<|end|><|start|>assistant'
FINAL = "<|channel|>final<|message|>"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TEMPLATE = "{# <|channel|> #}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"


def tokens(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        mark = next((mark for mark in MARKS if text.startswith(mark)), None)
        ids += [ord(text[0])] if mark is None else [IDS[mark]]
        text = text[len(mark or " ") :]
    return ids


def form(kind: StructuredKind, text: str) -> StructuredOutput:
    return StructuredOutput(kind=kind, text=text, before=before_answer(IDS.get))


FORMS = [
    (form(StructuredKind.JSON_SCHEMA, json.dumps(SCHEMA)), '{"a": 1}', '{"b": 1}'),
    (form(StructuredKind.REGEX, "[a-c]+"), "abc", "abd"),
    (form(StructuredKind.CHOICE, '["yes", "no"]'), "no", "maybe"),
    (form(StructuredKind.GRAMMAR, 'root ::= "x" | "y"'), "y", "z"),
]


@pytest.mark.parametrize(("asked", "right", "wrong"), FORMS, ids=[asked.kind for asked, _, _ in FORMS])
@pytest.mark.parametrize(
    "lead", ["", FINAL, THOUGHT + FINAL, THOUGHT * 2 + "<|channel|>final <|constrain|>json<|message|>"]
)
def test_form__after_thoughts__is_kept_to_and_may_end(asked, right, wrong, lead) -> None:
    token_ids = tokens(lead + right)
    constraint = COMPILER.constraint(asked, 0, token_ids)
    words = np.zeros(COMPILER.num_words, dtype=np.int32)
    constraint.fill_mask(token_ids, words)

    assert np.unpackbits(words.view(np.uint8), bitorder="little")[IDS["<|return|>"]]
    with pytest.raises(InvalidStructuredOutput):
        COMPILER.constraint(asked, 0, tokens(lead + wrong))


@pytest.mark.parametrize(
    "said",
    [
        "<|channel|>commentary",  # it can call nothing
        THOUGHT + "<|channel|>analysis<|return|>",
        FINAL + THOUGHT,
        FINAL + '{"<|end|>": 1',
        "<|channel|>analysis<|message|>Hm.<|return|>",
    ],
)
def test_form__other_marks__do_not_follow(said) -> None:
    with pytest.raises(InvalidStructuredOutput):
        COMPILER.constraint(FORMS[0][0], 0, tokens(said))


def test_before_answer__model_has_other_marks__is_nothing() -> None:
    assert before_answer({**IDS, "<|channel|>": None}.get) == ""


@pytest.fixture
async def talk(serve, tmp_path: Path):
    """`talk(text)` is a client of a fleet whose model says `text`, with gpt-oss' marks."""
    clients = []

    async def start(text: str) -> openai.AsyncOpenAI:
        served = await serve(FakeUnit(says=lambda _: text, constrains=True))
        folder = write_byte_tokenizer(tmp_path / "marks", chat_template=TEMPLATE + "<|start|>assistant")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "additional_special_tokens": MARKS}))
        clients.append(sdk_of(served, folder))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


@pytest.mark.parametrize("said", [THOUGHT + FINAL + '{"a": 1}', '{"a": 1}'])
@pytest.mark.parametrize("stream", [False, True])
async def test_chat__form_of_gpt_oss__thoughts_and_answer_come_apart(talk, said, stream) -> None:
    sdk = await talk(said)
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "A?"}], "response_format": FORMAT}
    answer = await sdk.chat.completions.create(**ask, stream=stream)
    deltas = [chunk.choices[0].delta async for chunk in answer] if stream else [answer.choices[0].message]
    thoughts = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    request = sdk.unit.requests[-1]

    assert "".join(delta.content or "" for delta in deltas) == '{"a": 1}'
    assert thoughts == ('A "name"; {no} form.' if said.startswith("<") else "")
    assert request.sampling.structured_output == form(
        StructuredKind.JSON_SCHEMA, json.dumps(SCHEMA, separators=(",", ":"))
    )
    assert not request.skip_special_tokens


async def test_chat__call_that_must_be_made__has_no_thoughts_before_it(talk) -> None:
    sdk = await talk('{"a": 1}')
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "A?"}], "tools": [tool]}
    answer = await sdk.chat.completions.create(**ask, tool_choice={"type": "function", "function": {"name": "f"}})

    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    assert sdk.unit.requests[-1].sampling.structured_output.before == ""
