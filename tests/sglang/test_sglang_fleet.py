"""One fleet with a native unit and an SGLang unit behind one gateway, and what OpenAI's SDK asks of both."""

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from clients import chat, client_of, streamed_chat
from fleet_process import running_fleet

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

MODELS = ("one", "two")
"""The same checkpoint twice: one on either unit."""

FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}, "kind": {"enum": ["red", "green"]}},
            "required": ["yes", "kind"],
            "additionalProperties": False,
        },
    },
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


FLEET = """
name: both
models:
  - {{id: one, source: {source}, slo: {{ttft_s: 5, tbt_s: 0.5}}}}
  - {{id: two, source: {source}, slo: {{ttft_s: 5, tbt_s: 0.5}}}}
pools:
  - {{name: ours, device: cpu, cores: 1, kv_memory: 64MiB}}
  - name: sglangs
    backend: sglang
    device: cpu
    cores: 2
    kv_memory: 64MiB
    sglang: {{multiplexing: "on", args: {{sampling_backend: pytorch}}}}
engine: {{policy: muxwise}}
placement: {{solver: memory_greedy}}  # `two` on SGLang
gateway: {{port: {port}, replicas: 1, hold_s: 180}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, small_checkpoint, sglang_environment):
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET.format(source=small_checkpoint, port=free_port()))
    added = {name: sglang_environment[name] for name in set(sglang_environment) - set(os.environ) | {"PYTHONPATH"}}
    with running_fleet(file, environment=added) as process:
        yield process


@pytest.fixture(scope="module")
def client(fleet) -> openai.OpenAI:
    return client_of(fleet.url)


def test_fleet__two_pools__a_model_on_either_engine(fleet):
    assert fleet.statuses() == dict.fromkeys(MODELS, "ready")
    assert fleet.process(title="pdmux_actor.serving.process").is_running()
    assert fleet.process(title="pdmux_actor.backends.sglang.process").is_running()


def test_chat__either_engine__same_text_whole_streamed_and_many_at_once(client):
    alone = {model: chat(client, model, max_tokens=24) for model in MODELS}
    assert alone["one"] == alone["two"]

    assert {model: streamed_chat(client, model, max_tokens=24) for model in MODELS} == alone
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda i: chat(client, MODELS[i % 2], max_tokens=24), range(12)))
    assert set(together) == set(alone.values())


@pytest.mark.parametrize("model", MODELS)
def test_completions__either_engine__logprobs_stop_n_and_usage(client, model):
    plain = client.completions.create(model=model, prompt="Hello there", max_tokens=12, temperature=0)
    text = plain.choices[0].text
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage.completion_tokens == 12

    told = client.completions.create(model=model, prompt="Hello there", max_tokens=12, temperature=0, logprobs=2)
    assert told.choices[0].text == text
    assert len(told.choices[0].logprobs.token_logprobs) == 12
    assert all(len(top) >= 1 for top in told.choices[0].logprobs.top_logprobs)

    stop = text[4:6]
    stopped = client.completions.create(model=model, prompt="Hello there", max_tokens=12, temperature=0, stop=stop)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == text[: text.index(stop)]

    several = client.completions.create(model=model, prompt="Hello there", max_tokens=6, temperature=0.9, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]


@pytest.mark.parametrize("model", MODELS)
def test_seed__either_engine__same_draws_for_the_same_seed(client, model):
    def drawn(seed, **options):
        reply = client.completions.create(
            model=model, prompt="Hello there", max_tokens=16, temperature=1.0, seed=seed, **options
        )
        return [choice.text for choice in reply.choices]

    first = drawn(7)
    assert drawn(7) == first
    assert drawn(7, n=2)[0] == first[0]
    assert drawn(8) != first


@pytest.mark.parametrize("model", MODELS)
def test_chat__either_engine__logprobs_stop_n_and_usage_in_a_stream(client, model):
    messages = [{"role": "user", "content": "Hello there"}]
    plain = client.chat.completions.create(
        model=model, messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    )
    text = plain.choices[0].message.content
    assert len(plain.choices[0].logprobs.content) == 12
    assert all(len(token.top_logprobs) == 2 for token in plain.choices[0].logprobs.content)

    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=12,
            temperature=0,
            n=2,
            stop=text[4:6],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    for index in range(2):
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == text[: text.index(text[4:6])]
        assert mine[-1].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens > 0


def test_schema__sglang__output_follows_it_whole_streamed_and_many_at_once(client):
    def ask(i):
        options = {"model": "two", "messages": [{"role": "user", "content": f"Number {i}"}], "max_tokens": 200}
        options |= {"response_format": FORMAT, "temperature": 1.0, "seed": i}
        if i % 2:
            return client.chat.completions.create(**options).choices[0].message.content
        chunks = client.chat.completions.create(**options, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(6) as threads:
        replies = [json.loads(text) for text in threads.map(ask, range(6))]
    assert all(set(reply) == {"yes", "kind"} and reply["kind"] in ("red", "green") for reply in replies)


def test_schema__native__is_refused_with_the_remedy(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="one", messages=[{"role": "user", "content": "Hello"}], response_format=FORMAT
        )
    assert (refused.value.param, refused.value.code) == ("response_format", "unsupported_parameter")


def test_schema__not_understood__is_the_clients_fault(client):
    nonsense = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "poem"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="two", messages=[{"role": "user", "content": "Hello"}], response_format=nonsense
        )
    assert refused.value.param == "response_format"


@pytest.mark.parametrize("model", MODELS)
def test_errors__either_engine__in_openais_shape(client, model):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="x " * 9000, max_tokens=4)
    assert refused.value.body["message"]


@pytest.mark.parametrize("model", MODELS)
def test_disconnect__either_engine__frees_the_sequence(fleet, client, model):
    stream = client.completions.create(
        model=model, prompt="Hello", max_tokens=3000, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    fleet.wait_for_running(1)
    finished = fleet.answers()
    stream.close()

    fleet.wait_for_running(0)
    assert fleet.answers() == finished, "it ran to its end"
