import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    PromptLogprob,
    SampledToken,
    SamplingParams,
    Slo,
    TokenEvent,
)
from pdmux_actor.serving.detokenizer import Vocabulary
from pdmux_actor.serving.frames import PromptToken
from pdmux_actor.serving.token_stream import TokenStream


@pytest.fixture(scope="session")
def vocabulary(checkpoint) -> Vocabulary:
    return Vocabulary(Tokenizer.from_file(str(checkpoint / "tokenizer.json")))


@pytest.fixture
def open_stream(vocabulary, make_request):
    def make(credit: int = 64, **changes):
        sent = []
        request = make_request(**changes)
        return TokenStream(stream=7, request=request, vocabulary=vocabulary, credit=credit, send=sent.append), sent

    return make


@pytest.fixture
def event(vocabulary):
    def make(text: str = "", finish: FinishReason | None = None, **changes) -> TokenEvent:
        ids = vocabulary.tokenizer.encode(text).ids
        tokens = tuple(SampledToken(token_id, -0.5, ((token_id, -0.5),)) for token_id in ids)
        return TokenEvent(request_id="r", tokens=tokens, finish=finish, **changes)

    return make


def test_token_stream__with_credit__one_delta_per_event(open_stream, event):
    stream, sent = open_stream()

    stream.absorb(event("he"))
    stream.absorb(event("y", FinishReason.LENGTH))

    assert [(d.stream, d.sequence, d.text, d.finish) for d in sent] == [(7, 0, "he", None), (7, 1, "y", "length")]
    assert stream.finished


def test_token_stream__without_credit__merges_until_granted(open_stream, event):
    stream, sent = open_stream(credit=1)
    for text in "abcd":
        stream.absorb(event(text))
    assert [d.text for d in sent] == ["a"]

    stream.grant(2)
    stream.absorb(event("e"))
    stream.absorb(event("f"))

    assert [(d.sequence, d.text, len(d.token_ids)) for d in sent] == [(0, "a", 1), (1, "bcd", 3), (2, "e", 1)]


def test_token_stream__finished_without_credit__last_delta_goes_at_once(open_stream, event):
    stream, sent = open_stream(credit=0)
    stream.absorb(event("ab"))

    stream.absorb(event("c", FinishReason.LENGTH))

    assert [(d.text, d.finish) for d in sent] == [("abc", FinishReason.LENGTH)]


def test_token_stream__token_that_stops__is_counted_and_is_no_text(open_stream, event):
    stream, sent = open_stream(credit=0)
    stream.absorb(event("ab"))

    stream.absorb(event("c", FinishReason.STOP))

    assert [(d.text, len(d.token_ids), d.finish) for d in sent] == [("ab", 3, FinishReason.STOP)]


def test_token_stream__grant_with_nothing_pending__sends_nothing(open_stream, event):
    stream, sent = open_stream(credit=1)

    stream.grant(1)
    stream.absorb(event("a", FinishReason.LENGTH))
    stream.grant(5)

    assert len(sent) == 1


def test_token_stream__stop_string__ends_at_the_match(open_stream, event, vocabulary):
    stream, sent = open_stream(stop=("END",))

    stream.absorb(event("a E"))
    assert (sent[0].text, sent[0].held_back) == ("a ", 1)
    stream.absorb(event("NDxyz"))
    stream.absorb(event("late", FinishReason.LENGTH))

    assert [(d.text, d.finish) for d in sent] == [("a ", None), ("", FinishReason.STOP)]
    assert vocabulary.tokenizer.decode([t for d in sent for t in d.token_ids]) == "a END"


def test_token_stream__length_while_stop_string_forms__shows_what_was_held_back(open_stream, event):
    stream, sent = open_stream(stop=("END",))

    stream.absorb(event("aEN", FinishReason.LENGTH))

    assert (sent[0].text, sent[0].finish, sent[0].held_back) == ("aEN", FinishReason.LENGTH, 0)


def test_token_stream__retryable_failure__keeps_back_what_may_go_on_elsewhere(open_stream, event):
    stream, sent = open_stream(stop=("END",))
    stream.absorb(event("aEN"))

    stream.fail("the engine died", retryable=True)
    stream.fail("again", retryable=True)

    last = sent[-1]
    assert (last.finish, last.error, last.retryable) == (FinishReason.ERROR, "the engine died", True)
    assert ("".join(d.text for d in sent), last.held_back) == ("a", 2)
    assert len(sent) == 2


def test_token_stream__failure_of_the_request_itself__is_not_retryable(open_stream, event):
    stream, sent = open_stream()

    stream.absorb(event(finish=FinishReason.ERROR, error="too long"))

    assert (sent[0].error, sent[0].retryable) == ("too long", False)


def test_token_stream__cancelled__is_silent(open_stream, event):
    stream, sent = open_stream()

    stream.cancel()
    stream.absorb(event("a"))
    stream.fail("late", retryable=True)
    stream.grant(1)

    assert sent == []


def test_token_stream__continued__shows_only_new_text(open_stream, event, vocabulary):
    prior = tuple(vocabulary.tokenizer.encode("said ").ids)
    stream, sent = open_stream(output_token_ids=prior)

    stream.absorb(event("more", FinishReason.LENGTH))

    assert [d.text for d in sent] == ["more"]
    assert len(sent[0].token_ids) == 4


def test_token_stream__logprobs_asked_for__one_per_token_also_when_merged(open_stream, event):
    stream, sent = open_stream(credit=0, sampling={"logprobs": 1})
    stream.absorb(event("ab"))
    stream.absorb(event("c", FinishReason.LENGTH))

    assert [logprob.token for logprob in sent[0].logprobs] == ["a", "b", "c"]
    assert sent[0].logprobs[0].top[0].token == "a"


def test_token_stream__prompt_asked_for__is_told_once_with_the_first_token(open_stream, event):
    stream, sent = open_stream(credit=0, prompt_token_ids=(5, 6), sampling={"prompt_logprobs": 1})
    stream.absorb(event("h", prompt_logprobs=(PromptLogprob(6, -0.5, 2, ((7, -0.1),)),)))
    stream.absorb(event("e"))
    stream.grant(1)
    stream.absorb(event("y", FinishReason.LENGTH))

    of = stream._vocabulary.token_bytes.of
    assert [d.prompt for d in sent] == [
        (PromptToken(5, of(5)), PromptToken(6, of(6), -0.5, 2, ((7, of(7), -0.1),))),
        (),
    ]


def test_token_stream__embedding__is_told_with_the_end_whatever_the_credit(open_stream, event):
    stream, sent = open_stream(credit=0)

    stream.absorb(event("h", FinishReason.LENGTH, embedding=b"\0\1\2\3"))

    assert [d.embedding for d in sent] == [b"\0\1\2\3"]


def test_token_stream__logprobs_not_asked_for__none(open_stream, event):
    stream, sent = open_stream()

    stream.absorb(event("ab", FinishReason.LENGTH))

    assert sent[0].logprobs is None


@given(
    texts=st.lists(st.text(alphabet="aEND日", max_size=4), max_size=12),
    grants=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    credit=st.integers(0, 3),
    cancel_at=st.one_of(st.none(), st.integers(0, 12)),
)
def test_token_stream__any_history__deltas_count_up_and_end_once(vocabulary, texts, grants, credit, cancel_at):
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt_token_ids=(1,),
        sampling=SamplingParams(max_tokens=99),
        slo=Slo(ttft_s=1, tbt_s=1),
        stop=("END",),
    )
    sent = []
    stream = TokenStream(stream=1, request=request, vocabulary=vocabulary, credit=credit, send=sent.append)
    granted = credit
    for i, (text, grant) in enumerate(zip(texts, grants, strict=False)):
        if i == cancel_at:
            stream.cancel()
        ids = vocabulary.tokenizer.encode(text).ids
        stream.absorb(TokenEvent(request_id="r", tokens=tuple(SampledToken(t) for t in ids)))
        if grant:
            granted += grant
            stream.grant(grant)
        assert len([d for d in sent if d.finish is None]) <= granted
    stream.absorb(TokenEvent(request_id="r", finish=FinishReason.LENGTH))

    assert [d.sequence for d in sent] == list(range(len(sent)))
    cancelled = cancel_at is not None and cancel_at < len(texts)
    finishes = [d.finish for d in sent if d.finish is not None]
    full = "".join(texts)
    if not cancelled or finishes:
        assert len(finishes) == 1
        assert sent[-1].finish is not None
        assert "".join(d.text for d in sent) == full.partition("END")[0]
        assert finishes[0] is (FinishReason.STOP if "END" in full else FinishReason.LENGTH)
