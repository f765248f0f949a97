"""Outputs that have a form, of random models on the real engine: every one is whole and valid."""

import json
import re
import threading
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from cpu_rig import cores_of_this_process, make_device
from json_schemas import SCHEMAS
from measured_cpu import measured_cpu
from tokenizers import Tokenizer

from pdmux_actor.engine import build_engine
from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.executor.structured_output import FormCompiler
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    LogitsProcessing,
    SamplingParams,
    Slo,
    StructuredKind,
    StructuredOutput,
)
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.events import Arrival, AttachModel, Stop
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.serving.detokenizer import TokenBytes
from profiler.roofline import RooflineLatency
from router.openai.tools import FunctionTool, tool_use
from router.text.call_marks import call_marks
from router.text.reply_parser import ReplyParser
from router.text.reply_templates import template_for

MODEL = "demo-llama"
MAX_TOKENS = 1500


def schema_form(schema):
    return StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=json.dumps(schema))


def request_of(request_id, form, *, prompt_tokens=5, output=(), tbt_s=0.001, **sampling):
    params = {"temperature": 1.0, "seed": len(request_id), "max_tokens": MAX_TOKENS, **sampling}
    return GenerateRequest(
        request_id=request_id,
        model=MODEL,
        prompt_token_ids=tuple(range(20, 20 + prompt_tokens)),
        output_token_ids=tuple(output),
        sampling=SamplingParams(structured_output=form, **params),
        slo=Slo(ttft_s=5.0, tbt_s=tbt_s),
    )


class Model:
    """The demo's smallest model with its tokenizer."""

    def __init__(self, folder):
        self.folder = folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.executor = self._executor()
        self.info = self.executor.load_model(ModelSource(model=MODEL, source=str(folder), max_model_len=2048))
        self.executor.close()
        tokens = TokenBytes(self.tokenizer)
        vocab_size = self.info.spec.vocab_size
        texts = [tokens.of(i) if tokens.has_text(i) else b"" for i in range(vocab_size)]
        self.compiler = FormCompiler(texts, self.info.eos_token_ids, vocab_size=vocab_size)

    def _executor(self, num_cores=1):
        """On one core unless a policy divides more: there lanes' threads wait for each other at each operation."""
        return TorchCpuExecutor(
            kv_pool_bytes=128 << 20,
            block_bytes=8192,
            default_dtype="float32",
            cores=cores_of_this_process()[:num_cores],
            device=measured_cpu() if num_cores > 1 else make_device(1),
        )

    def constraint(self, request):
        form = request.sampling.structured_output
        if form is None:
            return None
        known = (*request.prompt_token_ids, *request.output_token_ids)
        return self.compiler.constraint(form, len(request.prompt_token_ids), known)

    def run(self, requests, *, policy="mux", quota_tokens=60_000, settings=None, num_cores=1):
        """Sampled tokens and finish by request, and the last load report."""
        executor = self._executor(num_cores)
        tokens = {r.request_id: [] for r in requests}
        finish = {}
        all_done = threading.Event()

        def outbox(events):
            for event in events:
                assert event.error is None, event.error
                tokens[event.request_id] += event.tokens
                if event.finish is not None:
                    finish[event.request_id] = event.finish
            if len(finish) == len(tokens):
                all_done.set()

        loop, inbox = build_engine(
            executor,
            policy=policy,
            settings=settings or SchedulerSettings(max_batch_tokens=512, chunk_budget_tokens=64),
            latency=RooflineLatency(executor.device),
            outbox=outbox,
        )
        info = executor.load_model(ModelSource(model=MODEL, source=str(self.folder), max_model_len=2048))
        quota_rows = -(-quota_tokens // info.geometry.tokens_per_row)
        inbox.put(AttachModel(info, quota_rows * info.geometry.blocks_per_row))
        for request in requests:
            inbox.put(Arrival(request, self.constraint(request)))
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            assert all_done.wait(200), f"unanswered: {tokens.keys() - finish.keys()}"
        finally:
            inbox.put(Stop())
            thread.join(30)
        return tokens, finish, loop.scheduler.load_report()

    def texts(self, tokens):
        ids = {name: [t.token_id for t in sampled] for name, sampled in tokens.items()}
        return {name: self.tokenizer.decode(sampled, skip_special_tokens=True) for name, sampled in ids.items()}


@pytest.fixture(scope="module")
def model(demo_checkpoints):
    return Model(demo_checkpoints[MODEL])


def ids_of(tokens):
    return {name: [t.token_id for t in sampled] for name, sampled in tokens.items()}


def test_json_schema__fifty_at_random__every_output_is_whole_and_valid(model) -> None:
    requests = [request_of(f"s{i}", schema_form(schema), seed=i) for i, schema in enumerate(SCHEMAS)]

    tokens, finish, _ = model.run(requests)

    assert set(finish.values()) == {FinishReason.STOP}
    for i, text in enumerate(model.texts(tokens).values()):
        jsonschema.validate(json.loads(text), SCHEMAS[i], cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("kind", "text", "is_valid"),
    [
        (StructuredKind.REGEX, r"[a-c]{2,5}@\d+(\.de|\.org)", re.compile(r"[a-c]{2,5}@\d+(\.de|\.org)").fullmatch),
        (StructuredKind.CHOICE, '["yes","no","süß \\"x\\"","a\\nb"]', {"yes", "no", 'süß "x"', "a\nb"}.__contains__),
        (StructuredKind.GRAMMAR, 'root ::= "(" root ")" | "x"', re.compile(r"\(*x\)*").fullmatch),
    ],
)
def test_form__of_each_other_kind__every_output_follows(model, kind, text, is_valid) -> None:
    form = StructuredOutput(kind=kind, text=text)

    tokens, finish, _ = model.run([request_of(f"r{i}", form, seed=i) for i in range(8)])

    assert set(finish.values()) == {FinishReason.STOP}
    assert all(is_valid(output) for output in model.texts(tokens).values())


def mixed_requests():
    """Constrained ones of all kinds of sampling beside free ones."""
    forms = [None, schema_form(SCHEMAS[18]), schema_form(SCHEMAS[5]), None, schema_form(SCHEMAS[30])]
    return [
        request_of(
            f"m{i}",
            forms[i % 5],
            prompt_tokens=10 + 9 * i,
            seed=i,
            max_tokens=250 if forms[i % 5] else 40,
            temperature=0.0 if i % 4 == 3 else 1.0,
            logprobs=2 if i % 3 == 0 else None,
            processing=LogitsProcessing(frequency_penalty=0.3, repetition_penalty=1.1) if i % 2 else None,
        )
        for i in range(15)
    ]


@pytest.fixture(scope="module")
def alone(model):
    """Each request by itself."""
    tokens, finish, _ = model.run(
        mixed_requests(), policy="prefill_first", settings=SchedulerSettings(max_running_sequences=1)
    )
    return ids_of(tokens), finish


@pytest.mark.parametrize("policy", ["mux", "duetserve", "chunked_prefill"])
def test_constrained__batched_under_any_policy_with_preemption__same_tokens(model, alone, policy) -> None:
    settings = SchedulerSettings(max_batch_tokens=1024, chunk_budget_tokens=50, kv_watermark=0.0, kv_lendable_share=0.0)
    tokens, finish, report = model.run(
        mixed_requests(), policy=policy, quota_tokens=400, settings=settings, num_cores=2
    )

    assert (ids_of(tokens), finish) == alone
    assert sum(m.preemptions_total for m in report.models) > 0


@pytest.mark.parametrize("kept", [1, 7, 0.9])
def test_constrained__goes_on_after_another_units_tokens__same_tokens(model, alone, kept) -> None:
    expected, ends = alone
    begun = []
    for request in mixed_requests():
        ids = expected[request.request_id]
        begun.append(replace(request, output_token_ids=tuple(ids[: kept if kept >= 1 else int(kept * len(ids))])))

    tokens, finish, _ = model.run(begun)

    assert finish == ends
    for request in begun:
        rest = expected[request.request_id][len(request.output_token_ids) :]
        assert [t.token_id for t in tokens[request.request_id]] == rest


def test_constrained__logprobs__are_of_the_models_own_distribution(model) -> None:
    form = StructuredOutput(kind=StructuredKind.CHOICE, text='["yes","no"]')

    tokens, _, _ = model.run([request_of("r", form, logprobs=2), request_of("free", None, logprobs=2, max_tokens=1)])

    assert tokens["r"][0].top == tokens["free"][0].top
    assert tokens["r"][0].logprob <= tokens["r"][0].top[0][1]


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            StructuredKind.JSON_SCHEMA,
            '{"type":"object","properties":{"a":{"type":"poem"}}}',
            '^Unsupported type "poem"',
        ),
        (StructuredKind.JSON_SCHEMA, "{", "^Failed to parse JSON"),
        (StructuredKind.JSON_SCHEMA, '{"$ref":"#/$defs/x"}', r"^Cannot find field \$defs in #/\$defs/x"),
        (StructuredKind.JSON_SCHEMA, '{"$ref":"#"}', "no output can follow it"),
        (StructuredKind.REGEX, "(a", "position 3: The parenthesis is not closed"),
        (StructuredKind.REGEX, "((a{1,200}){1,200}){1,200}", "takes more than 20 ms a token"),
        (StructuredKind.GRAMMAR, 'root ::= foo "a"', 'line 1, column 10: Rule "foo" is not defined'),
        (StructuredKind.GRAMMAR, "root ::= root", "no output can follow it"),
        (StructuredKind.STRUCTURAL_TAG, '{"type":"structural_tag","format":{"type":"poem"}}', "poem"),
    ],
)
def test_form__cannot_be_followed__says_where(model, kind, text, reason) -> None:
    with pytest.raises(InvalidStructuredOutput, match=reason):
        model.compiler.constraint(StructuredOutput(kind=kind, text=text), 0, ())


def test_constraint__output_of_another_unit_breaks_the_form__is_refused(model) -> None:
    form = StructuredOutput(kind=StructuredKind.CHOICE, text='["yes"]')
    no = model.tokenizer.encode("no").ids

    with pytest.raises(InvalidStructuredOutput, match="output so far"):
        model.compiler.constraint(form, 2, (5, 6, *no))


def test_constraint__structural_tag__free_text_around_a_constrained_part(model) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": SCHEMAS[0]},
            "end": "</f>",
        },
    }
    form = StructuredOutput(kind=StructuredKind.STRUCTURAL_TAG, text=json.dumps(tag))

    tokens, finish, _ = model.run([request_of("r", form)])

    (text,) = model.texts(tokens).values()
    assert finish["r"] is FinishReason.STOP
    jsonschema.validate(json.loads(text.removeprefix("<f>").removesuffix("</f>")), SCHEMAS[0])


@pytest.mark.parametrize(
    ("begun", "follows", "breaks"),
    [
        (b"\xed", b"\x9f", b"\xa0"),  # a surrogate
        (b"\xf4", b"\x8f", b"\x90"),  # beyond Unicode
        (b"\xe0", b"\xa0", b"\x9f"),  # overlong
        (b"\xe1", b"\xa0", b"a"),
        (b"", b"\xc2", b"\xc1"),
    ],
)
def test_constraint__characters_byte_by_byte__are_kept_to_utf8(model, begun, follows, breaks) -> None:
    tokens = TokenBytes(model.tokenizer)
    id_of = {tokens.of(i): i for i in range(model.info.spec.vocab_size) if len(tokens.of(i)) == 1}
    output = [id_of[bytes([byte])] for byte in b'"' + begun]
    constraint = model.compiler.constraint(schema_form({"type": "string", "maxLength": 9}), 0, output)
    words = np.zeros(-(-model.info.spec.vocab_size // 32), dtype=np.int32)
    constraint.fill_mask(output, words)

    allowed = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert (allowed[id_of[follows]], allowed[id_of[breaks]]) == (1, 0)


@pytest.mark.parametrize("parallel", [None, False])
def test_constrained__strict_tools_once_a_call_has_begun__arguments_follow_the_schema(model, parallel) -> None:
    functions = [{"name": f"f{i}", "parameters": SCHEMAS[i], "strict": True} for i in (1, 5, 20)]
    tools = [FunctionTool.model_validate({"type": "function", "function": one}) for one in functions]
    marks = call_marks(template_for("<tool_call>"), ())
    form = tool_use(tools, "auto", parallel=parallel).strict_calls(marks)
    begun = model.tokenizer.encode("Hi! <tool_call>").ids

    tokens, finish, _ = model.run([request_of(f"r{i}", form, seed=i, output=begun, max_tokens=500) for i in range(6)])

    for name, text in model.texts(tokens).items():
        call, _, rest = text.partition("</tool_call>")
        called = json.loads(call)
        (schema,) = [one["parameters"] for one in functions if one["name"] == called["name"]]
        jsonschema.validate(called["arguments"], schema, cls=jsonschema.Draft202012Validator)
        if parallel is False:
            assert (rest, finish[name]) == ("", FinishReason.STOP)


CALL = '{"name": "weather", "parameters": {"city": "Rome"}}'
ANY_CALL = '{"name": "time", "parameters": {"x": [1]}}'


@pytest.mark.parametrize(
    ("said", "parallel", "passes"),
    [
        ("Rainy; there.", None, True),
        (f"Sure! {CALL}", None, True),
        (f"{CALL}; {ANY_CALL}\n{CALL}", None, True),
        (f"{CALL}\n", None, True),
        (f"{CALL}; {ANY_CALL}", False, False),
        (f"{CALL} is it", None, False),
        (f"{CALL}; {CALL.replace('city', 'town')}", None, False),
        (f"{CALL}; {CALL.replace('weather', 'other')}", None, False),
    ],
)
def test_constraint__strict_tools_of_llama_3__let_calls_follow_one_another_and_nothing_else(
    model, said, parallel, passes
) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    functions = [{"name": "weather", "parameters": city, "strict": True}, {"name": "time"}]
    tools = [FunctionTool.model_validate({"type": "function", "function": one}) for one in functions]
    form = tool_use(tools, "auto", parallel=parallel).strict_calls(call_marks(template_for("<|start_header_id|>"), ()))
    constraint = model.compiler.constraint(form, 0, ())

    assert constraint.follows([*model.tokenizer.encode(said).ids, *model.compiler.end_token_ids[:1]]) is passes


ONE, SEP, ONE_END, CALLS, CALLS_END = (
    f"<\uff5ctool▁{word}\uff5c>" for word in ("call▁begin", "sep", "call▁end", "calls▁begin", "calls▁end")
)


@pytest.mark.parametrize(
    ("chat_template", "begin", "end"),
    [
        (ONE, ("{name}" + SEP).format, ONE_END),
        (f"{ONE} ```json", ("function" + SEP + "{name}\n```json\n").format, f"\n```{ONE_END}"),
    ],
)
@pytest.mark.parametrize(
    ("name", "arguments", "passes"),
    [("weather", '{"city": "Rome"}', True), ("weather", '{"town": "Rome"}', False), ("other", '{"city": "R"}', False)],
)
def test_constraint__strict_tools_of_deepseek__lets_through_what_is_read_as_a_call(
    model, chat_template, begin, end, name, arguments, passes
) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    functions = [{"name": "weather", "parameters": {**city, "additionalProperties": False}, "strict": True}]
    tools = [FunctionTool.model_validate({"type": "function", "function": one}) for one in functions]
    template = template_for(chat_template)
    form = tool_use(tools, "auto", parallel=None).strict_calls(call_marks(template, ()))
    constraint = model.compiler.constraint(form, 0, ())
    said = f"Sure.{CALLS}{ONE}{begin(name=name)}{arguments}{end}{CALLS_END}"
    read = ReplyParser(template, "", ()).feed(said, ends=True)

    assert constraint.follows([*model.tokenizer.encode(said).ids, *model.compiler.end_token_ids[:1]]) is passes
    assert (read.text, [(call.name, call.arguments) for call in read.tool_calls]) == ("Sure.", [(name, arguments)])
