"""Decisions in a stretch of decode are those of a scheduler that looks at everything at every step."""

from dataclasses import replace

import msgspec
import pytest
from engine_rig import PLAIN, VirtualEngine, make_request

from pdmux_actor.scheduling.events import Abort, Arrival, RemoveModel, SetPolicy, SetQuotas
from pdmux_actor.scheduling.policies.dispatch_policy import StretchPolicy
from pdmux_actor.scheduling.policies.registry import POLICIES, make_policy
from pdmux_actor.scheduling.settings import SchedulerSettings
from pdmux_actor.scheduling.unit_look import UnitLook

ROOMY = SchedulerSettings(quota_period_s=0.2, decode_lanes=2)


def events(*, spacing_s: float, models: str = "a", long: int = 16):
    """Prompts of several lengths that come into stretches, some at the start of others' ends."""
    return [
        (spacing_s * i, Arrival(make_request(f"r{i}", models[i % len(models)], 5 + 17 * i % 90, 3 + (long * (i % 4)))))
        for i in range(8)
    ]


CASES = {
    "one model, crowded": ("a", PLAIN, events(spacing_s=0.01, long=24)),
    "an abort, another policy and lower quotas in stretches": (
        "ab",
        ROOMY,
        [
            *events(spacing_s=0.2, models="ab"),
            (0.65, Abort("r3")),
            (0.85, SetPolicy("muxwise")),
            (1.05, SetQuotas({"a": 60, "b": 60})),
            (1.23, SetPolicy("mux")),
        ],
    ),
    "two models, quotas move, one leaves": (
        "ab",
        ROOMY,
        [*events(spacing_s=0.17, models="ab"), (1.2, RemoveModel("b"))],
    ),
}


def run(case: str, policy: str, *, stretches: bool) -> VirtualEngine:
    models, settings, timed = CASES[case]
    settings = replace(settings, decode_stretches=stretches)
    return VirtualEngine(timed, policy=policy, models=models, settings=settings, num_sms=8).run()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_stretches__any_policy__same_decisions_and_tokens_to_the_byte(policy, case):
    with_stretches, stepwise = (run(case, policy, stretches=on) for on in (True, False))

    logs = [msgspec.json.encode(e.scheduler.log.decisions()) for e in (with_stretches, stepwise)]
    assert len(with_stretches.scheduler.log.decisions()) > 20
    assert logs[0] == logs[1]
    assert with_stretches.token_events == stepwise.token_events
    assert with_stretches.event_times_s == stepwise.event_times_s
    assert with_stretches.scheduler.load_report() == stepwise.scheduler.load_report()


@pytest.mark.parametrize("policy", [p for p in sorted(POLICIES) if isinstance(make_policy(p), StretchPolicy)])
def test_stretches__one_long_answer__nearly_no_decision_looks_at_the_whole_unit(policy, monkeypatch):
    looks = []
    look = UnitLook.look
    monkeypatch.setattr(UnitLook, "look", lambda self, now_s: looks.append(now_s) or look(self, now_s))
    engine = VirtualEngine([(0.0, Arrival(make_request("r", max_tokens=200)))], policy=policy, settings=PLAIN).run()

    assert engine.scheduler.load_report().steps_total > 40
    assert len(looks) < 10
