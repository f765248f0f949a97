"""Steps that are applied to the whole batch at once do to the byte what they do sequence by sequence."""

from dataclasses import replace

import msgspec
import pytest
from engine_rig import INFOS, PLAIN, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Abort, Arrival, SetQuotas
from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.results import UniformSteps


def requests():
    """Of several targets, lengths and models, one in the background, one that stops at a token of its own."""
    made = [
        make_request(f"r{i}", "ab"[i % 2], 5 + 13 * i % 70, 4 + 11 * (i % 4), tbt_s=(0.003, 0.006, 0.05)[i % 3])
        for i in range(12)
    ]
    made[4] = replace(made[4], gives_way=True)
    made[9] = replace(made[9], sampling=replace(made[9].sampling, stop_token_ids=(7,)))
    return made


EVENTS = [
    *((0.015 * i, Arrival(request)) for i, request in enumerate(requests())),
    (0.09, Abort("r3")),
    (0.2, SetQuotas({"a": 60, "b": 60})),
]


def run(policy: str) -> VirtualEngine:
    settings = replace(PLAIN, decode_stretches=False, decode_lanes=2)
    return VirtualEngine(EVENTS, policy=policy, models="ab", settings=settings, num_sms=8).run()


@pytest.mark.parametrize("has_end", [False, True], ids=["no token ends", "some tokens end"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_uniform_steps__any_policy__same_decisions_tokens_and_counts_as_one_by_one(policy, has_end, monkeypatch):
    if has_end:
        sampled = {token.token_id for event in run(policy).token_events for token in event.tokens}
        monkeypatch.setitem(INFOS, "a", replace(INFOS["a"], eos_token_ids=frozenset({max(sampled)})))
    applied = []
    apply = UniformSteps.apply

    def noted(*args):
        told = apply(*args)
        applied.append(told is not None)
        return told

    monkeypatch.setattr(UniformSteps, "apply", noted)
    at_once = run(policy)
    monkeypatch.setattr(UniformSteps, "apply", lambda *args: None)
    one_by_one = run(policy)

    assert sum(applied) > 10
    assert not all(applied)
    assert at_once.token_events == one_by_one.token_events
    assert at_once.event_times_s == one_by_one.event_times_s
    logs = [msgspec.json.encode(engine.scheduler.log.decisions()) for engine in (at_once, one_by_one)]
    assert logs[0] == logs[1]
    assert at_once.scheduler.load_report() == one_by_one.scheduler.load_report()
