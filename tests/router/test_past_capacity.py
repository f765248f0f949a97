"""Requests in time when more is asked for than one unit can prefill, in a time that the tests tell."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from fleet_values import ask, fleet, is_idle, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import Slo
from router.admission.admission import Admit, Shed
from router.admission.service_counters import turn_works
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest

STEP_S = 0.005
PER_TOKEN_S = 1e-4
CHAT_TOKENS = 1000  # 0.1 s: ten per second
TTFT_S = 1.0


@dataclass(slots=True)
class World:
    """One unit that prefills one prompt after the other, as told by `fleet_values.model_load`."""

    scheduler: GatewayScheduler = field(default_factory=lambda: GatewayScheduler(gateway_id="g"))
    now_s: float = 0.0
    came_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    shed: dict[str, float] = field(default_factory=dict)
    retry_after_s: list[int] = field(default_factory=list)
    on_unit: deque[AdmissionRequest] = field(default_factory=deque)
    done_s: float | None = None

    def run(self, arrivals: list[tuple[float, AdmissionRequest]], until_s: float) -> None:
        coming = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
        next_view_s = 0.0
        while self.now_s < until_s:
            if self.now_s >= next_view_s:
                self.scheduler.update_view(
                    fleet(unit("u", model_load(quota_blocks=10**6), total_blocks=10**6)), self.now_s
                )
                next_view_s += 0.5
            while coming and coming[0][0] <= self.now_s:
                self.offer(coming.popleft()[1])
            self.work()
            for asked, outcome in self.scheduler.pump(self.now_s):
                self.take(asked, outcome)
            self.now_s += STEP_S

    def offer(self, asked: AdmissionRequest) -> None:
        self.came_s[asked.request_id] = self.now_s
        decision = self.scheduler.offer(asked, self.now_s)
        if isinstance(decision, Admit | Shed):
            self.take(asked, decision)

    def take(self, asked: AdmissionRequest, outcome: object) -> None:
        if isinstance(outcome, Admit):
            self.on_unit.append(asked)
        else:
            assert isinstance(outcome, Shed)
            self.retry_after_s.append(outcome.retry_after_s)
            self.shed[asked.request_id] = self.now_s

    def work(self) -> None:
        if self.done_s is not None and self.now_s >= self.done_s:
            done = self.on_unit.popleft()
            self.first_s[done.request_id] = self.now_s
            self.scheduler.produced(done.request_id, 1, self.now_s)
            self.scheduler.end(done.request_id, self.now_s, finished=True)
            self.done_s = None
        if self.done_s is None and self.on_unit:
            self.done_s = self.now_s + PER_TOKEN_S * self.on_unit[0].prompt_tokens

    def in_time(self, prefix: str = "") -> float:
        """Share of those that came."""
        names = [name for name in self.came_s if name.startswith(prefix)]
        return sum(self.first_s.get(n, 1e9) - self.came_s[n] <= TTFT_S for n in names) / len(names)


def steady(
    name: str, per_s: float, until_s: float, *, tokens: int = CHAT_TOKENS, **changes
) -> list[tuple[float, AdmissionRequest]]:
    slo = Slo(ttft_s=TTFT_S, tbt_s=0.1)
    return [
        (
            i / per_s,
            ask(f"{name}-{i}", prompt_tokens=tokens, max_tokens=1, slo=slo, deadline_s=i / per_s + 30, **changes),
        )
        for i in range(int(per_s * until_s))
    ]


@pytest.mark.parametrize(("load", "least_share_of_capacity"), [(0.9, 0.89), (1.3, 0.85), (2.0, 0.85), (3.0, 0.8)])
def test_gateway_scheduler__load_past_capacity__goodput_stays(load: float, least_share_of_capacity: float) -> None:
    world = World()
    world.run(steady("chat", 10 * load, 30), until_s=62)

    assert world.in_time() * load >= least_share_of_capacity
    assert len(world.first_s) + len(world.shed) == len(world.came_s), "everybody was answered"
    assert is_idle(world.scheduler)


def test_gateway_scheduler__hopeless_requests__are_shed_long_before_their_patience_ends() -> None:
    world = World()
    world.run(steady("chat", 25, 20), until_s=52)

    waits_s = sorted(at_s - world.came_s[name] for name, at_s in world.shed.items())
    assert len(waits_s) > 150
    assert waits_s[len(waits_s) // 2] < 3.0
    assert all(1 <= seconds <= 120 for seconds in world.retry_after_s)


def test_gateway_scheduler__short_burst__late_ones_are_served_in_what_is_spare() -> None:
    world = World()
    burst = [(0.0, asked) for _, asked in steady("burst", 30, 1)]
    world.run([*burst, *steady("chat", 3, 15)], until_s=20)

    assert not world.shed
    assert len(world.first_s) == len(world.came_s)
    assert world.in_time("chat") >= 0.95


def test_gateway_scheduler__late_requests_beside_a_flood_in_time__get_their_share() -> None:
    world = World()
    tight = Slo(ttft_s=0.05, tbt_s=0.1)  # no unit can keep it
    hopeless = [
        (t, ask(f"tight-{t}", prompt_tokens=CHAT_TOKENS, max_tokens=1, slo=tight, deadline_s=1e9, tenant="tight"))
        for t in range(5)
    ]
    world.run([*steady("chat", 20, 30), *hopeless], until_s=29)

    assert sum(name.startswith("tight") for name in world.first_s) >= 5


def test_pump__document_waits_behind_another__chat_that_is_due_before_both_is_not_held_up() -> None:
    world = World()
    world.run([], until_s=0.01)
    patient = Slo(ttft_s=30.0, tbt_s=0.1)
    first, second = (ask(name, prompt_tokens=90_000, slo=patient, deadline_s=60.0) for name in ("first", "second"))
    assert isinstance(world.scheduler.offer(first, 0.01), Admit)
    world.scheduler.offer(second, 0.02)
    assert not world.scheduler.pump(0.02)  # 9 s are ahead of it

    world.scheduler.offer(ask("chat", prompt_tokens=CHAT_TOKENS, slo=Slo(ttft_s=TTFT_S, tbt_s=0.1)), 0.03)

    assert [asked.request_id for asked, _ in world.scheduler.pump(0.03)] == ["chat"]


@pytest.mark.parametrize("flood_tokens", [CHAT_TOKENS, 3 * CHAT_TOKENS])
def test_gateway_scheduler__one_clients_flood__costs_others_no_more_than_two_points(flood_tokens: int) -> None:
    """The made-up unit does not interrupt a prefill: a prompt as long as the target itself would cost more."""
    alone, beside = World(), World()
    quiet = steady("quiet", 3, 30, tenant="quiet", tokens=500)
    alone.run(quiet, until_s=32)
    flood = steady("flood", 60_000 / flood_tokens, 30, tokens=flood_tokens, tenant="flood")
    beside.run([*quiet, *flood], until_s=32)

    assert beside.in_time("quiet") >= alone.in_time("quiet") - 0.02


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6)))
def test_turn_works__any_works__sum_of_what_each_takes_until_then(works: dict[str, float]) -> None:
    passed = turn_works(works)
    for tenant, own in works.items():
        assert passed[tenant] == pytest.approx(sum(min(own, other) for other in works.values()))
