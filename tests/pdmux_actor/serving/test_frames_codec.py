import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.serving.frames import (
    Cancel,
    Credit,
    Delta,
    FrameReader,
    FrameSplitter,
    FrameTooLarge,
    FromUnit,
    Generate,
    Hello,
    Ping,
    Refused,
    TokenLogprob,
    TopLogprob,
    ToUnit,
    Welcome,
    encode,
)

IDS = st.lists(st.integers(0, 200_000), max_size=50)
REQUESTS = st.builds(
    GenerateRequest,
    request_id=st.text(max_size=20),
    model=st.text(max_size=20),
    prompt_token_ids=IDS.map(tuple),
    output_token_ids=IDS.map(tuple),
    sampling=st.builds(SamplingParams, max_tokens=st.integers(1, 9), logprobs=st.none() | st.integers(0, 20)),
    slo=st.builds(Slo, ttft_s=st.floats(0, 10), tbt_s=st.floats(0, 1)),
    stop=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
TO_UNIT = st.one_of(
    st.builds(Hello, version=st.integers(0, 9), token=st.text(max_size=40)),
    st.builds(Generate, stream=st.integers(0, 2**40), request=REQUESTS),
    st.builds(Cancel, stream=st.integers(0, 9)),
    st.builds(Credit, stream=st.integers(0, 9), deltas=st.integers(1, 99)),
    st.just(Ping()),
)
TOP = st.builds(TopLogprob, st.text(max_size=3), st.floats(-9, 0), st.lists(st.integers(0, 255), max_size=3))
FROM_UNIT = st.one_of(
    st.builds(Welcome, unit_id=st.text(max_size=9)),
    st.builds(Refused, reason=st.text(max_size=9)),
    st.builds(
        Delta,
        stream=st.integers(0, 9),
        sequence=st.integers(0, 9),
        text=st.text(max_size=20),
        token_ids=IDS,
        logprobs=st.none() | st.lists(st.builds(TokenLogprob, st.just("x"), st.floats(-9, 0), IDS, st.lists(TOP))),
    ),
    st.just(Ping()),
)


def decoded(messages, message_type, seed):
    """What comes out when the encoded messages arrive in random pieces."""
    rng, reader = random.Random(seed), FrameReader(message_type)
    data = b"".join(encode(message) for message in messages)
    out = []
    while data:
        size = rng.choice([1, 2, 3, 7, 50, 4096])
        out += reader.feed(data[:size])
        data = data[size:]
    return out


@given(messages=st.lists(TO_UNIT, max_size=6), seed=st.integers(0, 99))
def test_frames__to_unit_in_random_pieces__come_out_as_they_went_in(messages, seed):
    assert decoded(messages, ToUnit, seed) == messages


@given(messages=st.lists(FROM_UNIT, max_size=6), seed=st.integers(0, 99))
def test_frames__from_unit_in_random_pieces__come_out_as_they_went_in(messages, seed):
    assert decoded(messages, FromUnit, seed) == messages


@given(data=st.binary(max_size=200), seed=st.integers(0, 99))
def test_frame_splitter__any_bytes__raises_or_yields_within_its_limit(data, seed):
    splitter = FrameSplitter(max_frame_bytes=64)
    try:
        bodies = list(splitter.feed(data))
    except FrameTooLarge:
        return
    assert all(len(body) <= 64 for body in bodies)


def test_frame_splitter__limit_raised_between_frames__applies_to_the_next():
    splitter = FrameSplitter(max_frame_bytes=len(encode(Ping())))
    bodies = splitter.feed(encode(Ping()) + encode(Welcome("u" * 100)))

    next(bodies)
    splitter.max_frame_bytes = 1000

    assert msgspec.msgpack.decode(next(bodies), type=FromUnit) == Welcome("u" * 100)


def test_frame_splitter__announced_size_above_limit__raises_before_it_arrives():
    with pytest.raises(FrameTooLarge, match="4294967295"):
        list(FrameSplitter().feed(b"\xff\xff\xff\xff"))
