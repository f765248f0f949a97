from profiler.probe import LaunchShape, ProbeLimits
from profiler.sweep import plan_sweep


def limits(**what: object) -> ProbeLimits:
    return ProbeLimits(
        shares=(16, 112, 132),
        max_sequence_tokens=4096,
        max_batch_tokens=2048,
        max_sequences=64,
        max_kv_tokens=100_000,
        **what,  # type: ignore[arg-type]  # the fields under test
    )


def test_plan_sweep__lanes_with_shares_of_their_own__asks_for_no_other() -> None:
    planned = plan_sweep(limits(decode_shares=(20, 116, 132), fuses=False))

    shares: dict[str, set[int]] = {}
    for plan in planned:
        shares.setdefault(plan.launch.phase, set()).add(plan.launch.sms)
    assert shares == {"prefill": {16, 112, 132}, "decode": {20, 116, 132}}
    beside = {(p.beside.sms, p.launch.sms) for p in planned if p.beside is not None}
    assert beside == {(112, 20), (16, 116)}
    held_out = [p.launch for p in planned if p.is_held_out]
    assert {(launch.phase, launch.sms) for launch in held_out} == {
        (phase, sms) for phase, lane in shares.items() for sms in lane
    }


def test_limits__fused_launch__where_both_lanes_may_have_that_share() -> None:
    fused = LaunchShape(sms=132, prompts=1, new_tokens=16, sequences=2, depth=64)

    assert limits().allow(fused)
    assert not limits(fuses=False).allow(fused)
    assert not limits(decode_shares=(20,)).allow(fused)
