"""What the control loop keeps of API keys' rates, and gives to gateways that come."""

import msgspec

from deploy.control.key_usages import KeptUsage, KeyUsages
from router.access.rate_limits import KeyUsage


def left_of(usages: KeyUsages, now_s: float) -> dict[str, float]:
    return {u.key_id: round(u.tokens_left, 6) for u in usages.left(now_s)}


def test_left__of_two_gateways__is_the_mean_of_their_parts() -> None:
    usages = KeyUsages()
    usages.tell("g1", [KeyUsage(key_id="k", tokens_left=-2.0)], 0.0)
    usages.tell("g2", [], 0.0)

    assert left_of(usages, 0.0) == {"k": -0.5}
    assert left_of(usages, 5.0)["k"] > -0.5


def test_left__of_a_gateway_that_is_gone__counts_until_its_part_is_whole() -> None:
    usages = KeyUsages()
    usages.tell("gone", [KeyUsage(key_id="k", tokens_left=-1.0)], 0.0)
    usages.tell("idle", [], 0.0)

    assert left_of(usages, 60.0) == {"k": 0.0}, "the idle one has said nothing for a minute and counts no more"
    assert left_of(usages, 121.0) == {}


def test_left__clock_set_back__debt_of_a_gateway_that_is_gone_is_paid_as_soon_as_before() -> None:
    usages = KeyUsages()
    usages.tell("gone", [KeyUsage(key_id="k", tokens_left=-1.0)], 10_000.0)

    assert left_of(usages, 5_000.0) == {"k": -1.0}
    assert left_of(usages, 5_060.0) == {"k": 0.0}
    assert left_of(usages, 5_121.0) == {}


def test_left__kept_and_restored_by_another_clock__goes_on() -> None:
    usages, after, set_back = KeyUsages(), KeyUsages(), KeyUsages()
    usages.tell("g", [KeyUsage(key_id="k", tokens_left=-3.0)], 1000.0)
    kept = msgspec.json.decode(msgspec.json.encode(usages.kept(1000.0)), type=KeptUsage)
    after.restore(kept, 1060.0)
    set_back.restore(kept, 500.0)

    assert left_of(after, 1060.0) == {"k": -2.0}
    assert left_of(set_back, 500.0) == {"k": -3.0}
