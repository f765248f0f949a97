"""One fleet with a native unit and an SGLang unit behind one gateway, and what OpenAI's SDK asks of both."""

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from clients import chat, client_of, streamed_chat
from fleet_process import FleetProcess

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

MODELS = ("one", "two")
"""The same checkpoint twice: one on either unit."""


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
gateway: {{port: {port}, replicas: 1, hold_s: 180}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, small_checkpoint, sglang_environment):
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET.format(source=small_checkpoint, port=free_port()))
    with pytest.MonkeyPatch.context() as patch:
        for name in set(sglang_environment) - set(os.environ) | {"PYTHONPATH"}:
            patch.setenv(name, sglang_environment[name])
        process = FleetProcess(file)
    try:
        process.wait_until_serving()
        yield process
        assert process.stop(signal.SIGINT) == 0
    finally:
        process.kill()


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
    stream.close()

    fleet.wait_for_running(0)
