"""What API keys have used of their rates outlives the gateway that let them."""

import pytest

from router.access.api_keys import KeyEntry
from router.access.rate_limits import KeyUsage, RateLimits

ENTRY = KeyEntry(key_id="k", name="team", hash="sha256:0", requests_per_minute=60, tokens_per_minute=600)


def spent(tokens: int, now_s: float = 0.0) -> RateLimits:
    limits = RateLimits()
    limits.enter(ENTRY, now_s, num_gateways=1)
    limits.spend("k", tokens, now_s)
    return limits


def test_usage__of_a_key_in_debt__waits_as_long_at_the_gateway_that_comes_after() -> None:
    before, after = spent(1800), RateLimits()
    after.restore(before.usage(10.0), 510.0)

    waits = [
        limits.enter(ENTRY, now_s, num_gateways=1).retry_after_s for limits, now_s in ((before, 20.0), (after, 520.0))
    ]
    assert waits[0] == waits[1] == 101


def test_usage__of_another_number_of_gateways__is_the_same_share() -> None:
    after = RateLimits()
    after.restore(spent(300).usage(0.0), 0.0)

    assert after.enter(ENTRY, 0.0, num_gateways=2).remaining_tokens == 150


def test_usage__key_asked_before_it_was_known__loses_the_difference() -> None:
    after = spent(60)
    after.restore([KeyUsage(key_id="k", requests_left=0.5, tokens_left=-1.0)], 0.0)

    (left,) = after.usage(0.0)
    assert left.tokens_left == pytest.approx(1.0 - 0.1 - 2.0)
    assert left.requests_left == pytest.approx(1.0 - 1 / 60 - 0.5)


def test_usage__told_on_before_the_key_came_back__is_not_lost() -> None:
    middle, last = RateLimits(), RateLimits()
    middle.restore(spent(1800).usage(0.0), 0.0)
    last.restore(middle.usage(30.0), 30.0)

    assert last.enter(ENTRY, 30.0, num_gateways=1).retry_after_s == 91


def test_usage__of_keys_that_are_whole_again_or_gone__is_not_told() -> None:
    limits = spent(60)
    assert limits.usage(60.0) == ()

    limits.restore([KeyUsage(key_id="gone", tokens_left=0.0)], 0.0)
    limits.keep(frozenset({"k"}))
    assert [u.key_id for u in limits.usage(0.0)] == ["k"]
