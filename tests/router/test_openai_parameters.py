from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.frames import TokenLogprob
from router.generation import Output
from router.openai.body import parse_body
from router.openai.chat import ChatCompletionRequest
from router.openai.chat_reply import ChatReply
from router.openai.completion_reply import completion_logprobs
from router.openai.completions import CompletionRequest
from router.openai.parameters import derived_seed
from router.openai.reply import ReplyHead, Usage

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]%s}'


def chat(extra: bytes = b"") -> ChatCompletionRequest:
    return parse_body(CHAT % extra, ChatCompletionRequest)


def sampling_of(extra: bytes = b""):
    return chat(extra).sampling(max_tokens=50, choice=0, fallback_seed=9)


def test_sampling__nothing_asked__is_openais_default() -> None:
    sampling = sampling_of()
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 1.0, 0, 9)
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.logprobs) == (0, False, None)


def test_sampling__top_p_zero__is_greedy() -> None:
    sampling = sampling_of(b', "top_p": 0')
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


def test_sampling__top_k_minus_one__means_all() -> None:
    assert sampling_of(b', "top_k": -1').top_k == 0


def test_sampling__min_tokens_above_max__is_bounded() -> None:
    assert sampling_of(b', "min_tokens": 80').min_tokens == 50


def test_max_tokens__both_names__the_newer_wins() -> None:
    assert chat(b', "max_tokens": 3, "max_completion_tokens": 5').asked_max_tokens == 5


def test_logprobs__chat__count_needs_the_flag() -> None:
    assert chat(b', "logprobs": true').asked_logprobs == 0
    assert chat(b', "logprobs": true, "top_logprobs": 4').asked_logprobs == 4
    assert chat(b', "top_logprobs": 4').asked_logprobs is None


def test_messages__developer_and_parts__become_what_templates_know() -> None:
    body = (
        b'{"model": "m", "messages": [{"role": "developer", "content": [{"type": "text", "text": "a"},'
        b'{"type": "text", "text": "b"}]}, {"role": "assistant", "content": null, "tool_calls": null}]}'
    )
    messages = [m.for_template() for m in parse_body(body, ChatCompletionRequest).messages]
    assert messages == [{"role": "system", "content": "ab"}, {"role": "assistant", "content": ""}]


def test_prompts__token_ids__are_one_prompt() -> None:
    assert parse_body(b'{"model": "m", "prompt": [1, 2]}', CompletionRequest).prompts == [[1, 2]]
    assert parse_body(b'{"model": "m", "prompt": [[1], [2]]}', CompletionRequest).prompts == [[1], [2]]
    assert parse_body(b'{"model": "m", "prompt": ["1", "2"]}', CompletionRequest).prompts == ["1", "2"]


@given(st.integers(-(2**63), 2**63 - 1))
def test_derived_seed__any_seed__is_in_range_distinct_and_stable(seed: int) -> None:
    seeds = [derived_seed(seed, choice) for choice in range(16)]
    assert len(set(seeds)) == 16
    assert all(0 <= s < 2**63 for s in seeds)
    assert seeds == [derived_seed(seed, choice) for choice in range(16)]


def test_chat_events__continuous_usage__rides_on_every_event() -> None:
    reply = ChatReply(ReplyHead(reply_id="i", model="m", created_s=1), with_logprobs=False, usage_is_asked=True)
    output = Output(text="x", num_tokens=1, finish=FinishReason.STOP)
    events = reply.events(0, output, Usage(prompt_tokens=2, completion_tokens=1)).decode().split("\n\n")[:-1]
    assert len(events) == 3
    assert all('"total_tokens":3' in event for event in events)


def test_completion_logprobs__character_of_several_tokens__offsets_are_of_the_text() -> None:
    text = "hé€😀x"
    tokens = [TokenLogprob(bytes([b]).decode(errors="replace"), -1.0, [b], []) for b in text.encode()]
    whole, end = completion_logprobs(tokens, 2)
    first, between = completion_logprobs(tokens[:2], 2)  # a stream may tell them apart
    second, _ = completion_logprobs(tokens[2:], between)

    assert whole["text_offset"] == [2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6]
    assert end == 2 + len(text)
    assert first["text_offset"] + second["text_offset"] == whole["text_offset"]


def test_completion_logprobs__no_alternatives__are_null() -> None:
    assert completion_logprobs([], 5) == (
        {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
        5,
    )
