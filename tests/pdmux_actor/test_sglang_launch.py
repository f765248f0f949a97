"""What SGLang is started with, and what it is not started with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pdmux_actor.backends.sglang.launch import plan_launch
from pdmux_actor.backends.sglang.options import SglangOptions, partitions_of
from pdmux_actor.backends.sglang.plugin_config import read_config
from pdmux_actor.backends.sglang.requests import finish_of, generate_arguments, token_event
from pdmux_actor.backends.sglang.snapshot import DONE_KEY
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    LogitsProcessing,
    SampledToken,
    SamplingParams,
    Slo,
    StructuredKind,
    StructuredOutput,
)
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from pdmux_actor.serving.commands import EngineSettings, LoadModelCommand
from profiler.gpus.h200 import DEVICE as H200

SCHEMA = StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text='{"type":"object"}')
SETTINGS = EngineSettings(kind="sglang_cuda", kv_pool_bytes=64 * 1024 * 1024, device_type="H200", num_gpus=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(folder, replace(DEMO_SHAPES["demo-llama"], num_layers=1), 1)
    return folder


def launch(checkpoint, folder, *, options=None, policy="mux", kind="sglang_cuda", architecture=None):
    if architecture is not None:
        config = json.loads((checkpoint / "config.json").read_text())
        config |= {"architectures": [architecture], "num_local_experts": 4, "num_experts_per_tok": 2}
        checkpoint = folder / "other"
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text(json.dumps(config))
    settings = EngineSettings(kind=kind, kv_pool_bytes=1 << 20, num_gpus=2, sglang=options or SglangOptions())
    command = LoadModelCommand(call=1, model="m", source=str(checkpoint), quota_blocks=512, max_model_len=1000)
    return plan_launch(settings, command, policy=policy, device=H200, folder=folder, socket="/nowhere.sock")


def test_launch__cuda__multiplexes_on_our_partitions(checkpoint, tmp_path):
    planned = launch(checkpoint, tmp_path)

    arguments = planned.arguments
    assert planned.unmultiplexed is None
    assert (arguments["enable_pdmux"], arguments["chunked_prefill_size"], arguments["tp_size"]) == (True, -1, 2)
    assert (arguments["context_length"], planned.info.max_model_len) == (1000, 1000)
    document = yaml.safe_load(Path(arguments["pdmux_config_path"]).read_text())
    assert arguments["sm_group_num"] == document["sm_group_num"] == len(document["manual_divisions"]) + 2
    assert [tuple(d[:2]) for d in document["manual_divisions"]] == list(partitions_of(SglangOptions(), H200))
    assert all(
        prefill + decode == 132 and threshold == 1 for prefill, decode, threshold in document["manual_divisions"]
    )
    config = read_config(arguments["pdmux_config_path"])
    assert (config.policy, config.num_gpus, config.multiplexes) == ("mux", 2, True)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"options": SglangOptions(multiplexing="off")}, "multiplexing is off"),
        ({"kind": "sglang_cpu"}, "need an NVIDIA GPU"),
        ({"architecture": "MixtralForCausalLM"}, "cannot run MixtralForCausalLM in slices"),
    ],
)
def test_launch__cannot_multiplex__serves_and_says_why(checkpoint, tmp_path, what, why):
    planned = launch(checkpoint, tmp_path, **what)

    assert why in planned.unmultiplexed
    assert "enable_pdmux" not in planned.arguments
    assert read_config(planned.arguments["pdmux_config_path"]).multiplexes is False


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            {"options": SglangOptions(multiplexing="on"), "architecture": "MixtralForCausalLM"},
            ("MixtralForCausalLM", "multiplexing to auto"),
        ),
        ({"policy": "duetserve"}, ("multiplexing", "mux or muxwise")),
        ({"options": SglangOptions(decode_sms=(35,))}, ("decode_sms", "choose from 20")),
        ({"options": SglangOptions(args={"speculative_algorithm": "EAGLE"})}, ("speculative_algorithm", "remove it")),
        ({"architecture": "MambaForCausalLM"}, ("MambaForCausalLM",)),
    ],
)
def test_launch__what_cannot_be__is_refused_with_the_remedy(checkpoint, tmp_path, what, words):
    with pytest.raises(ModelLoadError) as refused:
        launch(checkpoint, tmp_path, **what)
    for word in words:
        assert word in str(refused.value)


def test_launch__policy_chunked_prefill_without_multiplexing__is_sglangs_own(checkpoint, tmp_path):
    planned = launch(checkpoint, tmp_path, options=SglangOptions(multiplexing="off"), policy="chunked_prefill")

    assert planned.arguments["enable_mixed_chunk"] is True
    assert planned.arguments["chunked_prefill_size"] == SETTINGS.scheduler.chunk_budget_tokens


def test_read_config__file_of_somebody_else__is_not_ours(tmp_path):
    (tmp_path / "theirs.yaml").write_text("sm_group_num: 8\n")

    assert read_config(str(tmp_path / "theirs.yaml")) is None
    assert read_config(None) is None


# ---- requests ----

REQUEST = GenerateRequest(
    request_id="r",
    model="m",
    prompt_token_ids=(1, 2, 3),
    output_token_ids=(4, 5),
    sampling=SamplingParams(max_tokens=10, min_tokens=3, temperature=0.5, seed=7, logprobs=2),
    slo=Slo(ttft_s=1.0, tbt_s=0.1),
)


def test_generate_arguments__request_that_was_moved__goes_on_behind_its_tokens():
    arguments = generate_arguments(REQUEST, "id", 100)

    assert arguments["input_ids"] == [1, 2, 3, 4, 5]
    params = arguments["sampling_params"]
    assert (params["max_new_tokens"], params["min_new_tokens"], params["top_k"]) == (8, 1, -1)
    assert (arguments["return_logprob"], arguments["top_logprobs_num"]) == (True, 2)


def test_generate_arguments__cache_salt__is_sglangs():
    assert generate_arguments(replace(REQUEST, cache_salt="s"), "id", 100)["cache_salt"] == "s"
    assert "cache_salt" not in generate_arguments(REQUEST, "id", 100)


def test_generate_arguments__little_room__ends_there():
    assert generate_arguments(REQUEST, "id", 7)["sampling_params"]["max_new_tokens"] == 2


def chunk(ids, logprobs, finish=None):
    top = [[(logprob, token, None), (-9.0, 0, None)] for logprob, token, _ in logprobs]
    meta = {"finish_reason": finish, "output_token_logprobs": logprobs, "output_top_logprobs": top}
    return {"output_ids": ids, "meta_info": meta}


def test_token_event__logprobs__belong_to_the_new_tokens():
    expected = (SampledToken(9, -1.0, ((9, -1.0), (0, -9.0))),)
    sliced = token_event(REQUEST, chunk([9], [(-1.0, 9, None)]), 1)
    cumulative = token_event(REQUEST, chunk([9], [(-2.0, 8, None), (-1.0, 9, None)]), 1)

    assert sliced.tokens == cumulative.tokens == expected


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        (None, None),
        ({"type": "stop", "matched": 2}, FinishReason.STOP),
        ({"type": "length", "length": 4}, FinishReason.LENGTH),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, FinishReason.ABORT),
        ({"type": "abort", "message": "no room", "status_code": 503, "err_type": None}, FinishReason.ERROR),
        ({"type": "new"}, FinishReason.ERROR),
    ],
)
def test_finish__sglangs_reasons__become_ours(reason, finish):
    assert finish_of(reason)[0] is finish


@pytest.mark.parametrize(("of_prompt", "told"), [(1, 1), (99, len(REQUEST.prompt_token_ids)), (None, 0)])
def test_token_event__first_tokens__tell_once_what_was_cached_of_the_prompt(of_prompt, told):
    def cached_of(token_ids, seen):
        one = chunk(token_ids, [(-1.0, t, None) for t in token_ids])
        one["meta_info"]["cached_tokens"] = of_prompt
        return token_event(REQUEST, one, seen).cached_tokens

    assert [cached_of([], 0), cached_of([9], 0), cached_of([9], 1)] == [0, told, 0]


def test_token_event__abort__repeats_no_token():
    aborted = {"type": "abort", "message": "Aborted", "status_code": None}

    assert token_event(REQUEST, chunk([9], [(-1.0, 9, None)], aborted), 1).tokens == ()


def test_schema__asked_for__goes_to_sglang_and_its_refusal_comes_back():
    constrained = replace(REQUEST, sampling=replace(REQUEST.sampling, structured_output=SCHEMA))
    invalid = {"type": "abort", "message": "Failed to compile json grammar: no", "status_code": 400}
    full = {"type": "abort", "message": "no room", "status_code": 503}

    params = generate_arguments(constrained, "id", 100)["sampling_params"]
    assert params["json_schema"] == '{"type":"object"}'
    assert params["custom_params"][DONE_KEY] == 2
    assert token_event(constrained, chunk([], [], invalid), 0).param == "response_format"
    assert token_event(constrained, chunk([], [], full), 0).param is None
    assert "json_schema" not in generate_arguments(REQUEST, "id", 100)["sampling_params"]


@pytest.mark.parametrize(("kind", "saves"), [("sglang_cuda", True), ("sglang_cpu", False)])
def test_launch__sleep__saves_memory_where_there_is_some_to_give_back(checkpoint, tmp_path, kind, saves):
    arguments = launch(checkpoint, tmp_path, options=SglangOptions(sleep=True), kind=kind).arguments

    assert ("enable_memory_saver" in arguments, "enable_weights_cpu_backup" in arguments) == (saves, saves)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (StructuredKind.REGEX, "[ab]+", {"regex": "[ab]+"}),
        (StructuredKind.GRAMMAR, 'root ::= "a"', {"ebnf": 'root ::= "a"'}),
        (StructuredKind.STRUCTURAL_TAG, "{}", {"structural_tag": "{}"}),
        (StructuredKind.CHOICE, '["a.b","c"]', {"regex": r"(a\.b)|(c)"}),
    ],
)
def test_structured_output__of_each_kind__goes_to_sglang_as_its_own(kind, text, expected):
    form = StructuredOutput(kind=kind, text=text)
    params = generate_arguments(replace(REQUEST, sampling=replace(REQUEST.sampling, structured_output=form)), "id", 99)

    assert {name: params["sampling_params"][name] for name in expected} == expected


def test_processing__asked_for__goes_to_sglang_with_what_another_unit_counted():
    processing = LogitsProcessing(
        logit_bias=((7, 2.0),), repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25, min_p=0.1
    )
    sampling = replace(REQUEST.sampling, processing=processing, stop_token_ids=(3,))
    begun = replace(REQUEST, sampling=sampling, output_token_ids=(7, 7, 9))

    params = generate_arguments(begun, "id", 100)["sampling_params"]

    assert {
        name: params[name] for name in ("repetition_penalty", "frequency_penalty", "presence_penalty", "min_p")
    } == {
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "min_p": 0.1,
    }
    assert params["logit_bias"] == {"7": 1.0, "9": -0.5}  # of each time that the output has it already
    assert params["stop_token_ids"] == [3]
