"""What SGLang units refuse before SGLang is asked: the client's fault, with the parameter and the remedy."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_rig import make_request

from pdmux_actor.backends.sglang.streams import RequestStreams
from pdmux_actor.messages import FinishReason, GenerateRequest, LogitsProcessing


def refused(request: GenerateRequest) -> tuple[str | None, str]:
    """The parameter and the error of the one event that is told."""
    told = []

    class Sender:
        def send_tokens(self, events) -> None:
            told.extend(events)

    async def submit() -> None:
        RequestStreams(Sender()).submit(request)
        await asyncio.sleep(0)

    asyncio.run(submit())
    (event,) = told
    assert (event.request_id, event.finish) == (request.request_id, FinishReason.ERROR)
    return event.param, event.error


PLAIN = make_request("asks", max_tokens=1)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (replace(PLAIN, embeds=True), "model"),
        (replace(PLAIN, sampling=replace(PLAIN.sampling, prompt_logprobs=1)), "prompt_logprobs"),
        (
            replace(PLAIN, sampling=replace(PLAIN.sampling, processing=LogitsProcessing(bad_words=((7,),)))),
            "bad_words",
        ),
    ],
)
def test_request__for_what_sglang_lacks__is_refused_naming_our_own_engine(request_, param: str) -> None:
    said, error = refused(request_)
    assert said == param
    assert "our own engine" in error


def test_request__sglang_raises_what_is_no_refusal__is_answered() -> None:
    told = []

    class Broken:
        async def async_generate(self, **arguments):
            raise RuntimeError("out of memory")

    async def submit() -> None:
        streams = RequestStreams(SimpleNamespace(send_tokens=told.extend))
        info = SimpleNamespace(model="a", spec=SimpleNamespace(vocab_size=512))
        streams.open(Broken(), SimpleNamespace(info=info, max_len=lambda quota_blocks: 512), 10)
        streams.submit(PLAIN)
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(submit())
    (event,) = told
    assert (event.request_id, event.finish) == (PLAIN.request_id, FinishReason.ERROR)
    assert "log" in event.error


def test_request__aborted_before_sglang_has_it__is_not_generated_for_nobody() -> None:
    told, begun = [], []

    class Engine:
        """As SGLang's, it knows a request from the first turn of `async_generate` on."""

        tokenizer_manager = SimpleNamespace(abort_request=lambda rid: None)

        async def async_generate(self, rid: str, **arguments):
            begun.append(rid)
            raise ValueError("its end")

    async def submit() -> None:
        streams = RequestStreams(SimpleNamespace(send_tokens=told.extend))
        info = SimpleNamespace(model="a", spec=SimpleNamespace(vocab_size=512))
        streams.open(Engine(), SimpleNamespace(info=info, max_len=lambda quota_blocks: 512), 10)
        streams.submit(PLAIN)
        streams.abort(PLAIN.request_id)
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(submit())
    assert [event.finish for event in told] == [FinishReason.ABORT]
    assert begun == []


@pytest.mark.parametrize(
    ("prompt_tokens", "finish"), [(63, FinishReason.ABORT), (511, FinishReason.ABORT), (512, FinishReason.ERROR)]
)
def test_request__longer_than_the_quota_takes__is_given_back_unless_it_exceeds_the_context(
    prompt_tokens: int, finish: FinishReason
) -> None:
    told = []

    async def submit() -> None:
        streams = RequestStreams(SimpleNamespace(send_tokens=told.extend))
        info = SimpleNamespace(model="a", max_model_len=512, spec=SimpleNamespace(vocab_size=512))
        streams.open(None, SimpleNamespace(info=info, max_len=lambda quota_blocks: 63), 10)
        streams.submit(make_request("asks", prompt_tokens=prompt_tokens))
        await asyncio.sleep(0)

    asyncio.run(submit())
    (event,) = told
    assert event.finish is finish
    assert "KV quota" in event.error


@pytest.mark.parametrize(
    "named", [{"stop_token_ids": (512,)}, {"processing": LogitsProcessing(logit_bias=((512, 1.0),))}]
)
def test_request__names_a_token_that_the_model_lacks__is_refused_before_sglang_meets_it(named) -> None:
    """SGLang's process, and with it everybody's requests, ends where a bias is beyond the logits."""
    told = []

    async def submit() -> None:
        streams = RequestStreams(SimpleNamespace(send_tokens=told.extend))
        info = SimpleNamespace(model="a", max_model_len=512, spec=SimpleNamespace(vocab_size=512))
        streams.open(None, SimpleNamespace(info=info, max_len=lambda quota_blocks: 512), 10)
        streams.submit(replace(PLAIN, sampling=replace(PLAIN.sampling, **named)))
        await asyncio.sleep(0)

    asyncio.run(submit())
    (event,) = told
    assert event.finish is FinishReason.ERROR
    assert "token id 512 is not in the vocabulary" in event.error
