"""Which gaps between tokens a stream is read to have."""

import json

import pytest

from traces.completion_stream import CompletionStream


def stream_of(*texts: str, usage_tokens: int | None) -> CompletionStream:
    """Reads chunks that come a second apart; the last one closes, and the usage follows it."""
    stream = CompletionStream()
    for at_s, text in enumerate(texts):
        finish = "length" if at_s == len(texts) - 1 else None
        feed(stream, {"choices": [{"text": text, "finish_reason": finish}]}, float(at_s))
    if usage_tokens is not None:
        feed(stream, {"choices": [], "usage": {"completion_tokens": usage_tokens}}, 100.0)
    feed(stream, None, 101.0)
    return stream


def feed(stream: CompletionStream, chunk: dict | None, now_s: float) -> None:
    data = "[DONE]" if chunk is None else json.dumps(chunk)
    stream.feed(f"data: {data}\n\n".encode(), now_s)


@pytest.mark.parametrize(
    ("texts", "usage_tokens", "gaps_s"),
    [
        (("a", "b", ""), 3, [1.0, 1.0]),  # half a character, or a special token, at the end
        (("a", "b", ""), 2, [1.0]),  # it says no more than that this is the end
        (("a", "b", ""), None, [1.0]),
        (("a", "b", ""), 5, [1.0]),  # chunks of several tokens: nobody knows
        (("a", "b", "c"), 3, [1.0, 1.0]),
        (("", ""), 2, [1.0]),
        (("",), 1, []),
    ],
)
def test_gaps__closing_chunk__counts_where_it_had_a_token(texts, usage_tokens, gaps_s) -> None:
    stream = stream_of(*texts, usage_tokens=usage_tokens)

    assert stream.gaps_s == gaps_s
    assert stream.output_tokens == (len([t for t in texts if t]) if usage_tokens is None else usage_tokens)
    assert (stream.first_token_s, stream.finished_s) == (0.0, len(texts) - 1.0)


def test_gaps__usage_comes_with_every_chunk__closing_chunk_counts_once() -> None:
    stream = CompletionStream()
    for at_s, (text, finish) in enumerate([("a", None), ("b", None), ("", "length")]):
        usage = {"completion_tokens": at_s + 1}
        feed(stream, {"choices": [{"text": text, "finish_reason": finish}], "usage": usage}, float(at_s))
    feed(stream, {"choices": [], "usage": {"completion_tokens": 3}}, 9.0)

    assert stream.gaps_s == [1.0, 1.0]
