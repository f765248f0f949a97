"""Any order of requests, tokens, losses, departures and views: the books balance and everybody is answered once."""

from fleet_values import ask, fleet, is_idle, model_load, unit
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pdmux_actor.lease import ModelPhase
from placement.unit_role import UnitRole
from router.admission.admission import Admit, NoCapacity, Queue, Shed
from router.gateway_scheduler import GatewayScheduler
from router.limits import GatewayLimits
from router.request_terms import Priority

MODELS = ("a", "b")
MAX_WAITING = 5

loads = st.builds(
    lambda model, quota, used, waiting: model_load(
        model, quota_blocks=quota, used_blocks=used, waiting=waiting > 0, waiting_tokens=waiting
    ),
    st.sampled_from(MODELS),
    st.integers(0, 60),
    st.integers(0, 30),
    st.sampled_from([0, 0, 500, 20_000]),
)
units = st.builds(
    lambda name, model_loads, age_s, phase, role: unit(
        name, *model_loads, age_s=age_s, phase=phase, total_blocks=100, role=role
    ),
    st.sampled_from(["u0", "u1", "u2"]),
    st.lists(loads, min_size=1, max_size=2, unique_by=lambda load: load.model),
    st.sampled_from([0.1, 2.0, 60.0]),
    st.sampled_from([ModelPhase.READY, ModelPhase.READY, ModelPhase.LOADING]),
    st.sampled_from(UnitRole),
)
views = st.builds(
    lambda of_view, gateways: fleet(*of_view, models=MODELS, num_gateways=gateways),
    st.lists(units, max_size=3, unique_by=lambda u: u.report.unit_id),
    st.integers(1, 2),
)


class GatewaySchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = GatewayScheduler(gateway_id="g", limits=GatewayLimits(max_queued=MAX_WAITING))
        self.now_s = 0.0
        self.number = 0
        self.waiting: set[str] = set()
        self.running: dict[str, str] = {}  # request: model
        self.lost: set[str] = set()
        self.answered: set[str] = set()
        self.over: set[str] = set()  # models whose reservations exceeded the capacity by something but admission

    def take(self, request, outcome) -> None:
        assert request.request_id not in self.answered, "answered twice"
        self.answered.add(request.request_id)
        if isinstance(outcome, Admit):
            self.running[request.request_id] = request.model
            ledger, model = self.scheduler.ledger, request.model
            capacity = ledger.capacity_blocks(model)
            held = [r for m, r in ledger._reservations.items() if m != request.request_id and r.model == model]
            counted = [r for r in held if request.gives_way or not r.gives_way]
            if capacity is not None and counted and model not in self.over:
                room_of_others = 0 if request.gives_way else ledger._yielding.get(model, 0)
                assert ledger.held_blocks(model) - room_of_others <= capacity, "admitted beyond the quota"
        else:
            assert isinstance(outcome, Shed | NoCapacity)
            assert 1 <= outcome.retry_after_s <= 120

    @rule(
        model=st.sampled_from(MODELS),
        tenant=st.sampled_from(["x", "y"]),
        priority=st.sampled_from(list(Priority)),
        prompt=st.integers(1, 600),
        output=st.integers(1, 300),
        patience_s=st.sampled_from([0.5, 5.0, 1e9]),
    )
    def offer(self, model, tenant, priority, prompt, output, patience_s) -> None:
        self.number += 1
        request = ask(
            f"r{self.number}",
            model,
            tenant=tenant,
            priority=priority,
            prompt_tokens=prompt,
            max_tokens=output,
            deadline_s=self.now_s + patience_s,
        )
        decision = self.scheduler.offer(request, self.now_s)
        if isinstance(decision, Queue):
            self.waiting.add(request.request_id)
        else:
            self.take(request, decision)
        self.pump()

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, 40.0]))
    def wait(self, seconds) -> None:
        self.now_s += seconds
        self.pump()

    @rule(view=views)
    def see(self, view) -> None:
        self.scheduler.update_view(view, self.now_s)
        for model in MODELS:
            capacity = self.scheduler.ledger.capacity_blocks(model)
            if capacity is not None and self.scheduler.ledger.held_blocks(model) > capacity:
                self.over.add(model)  # the quota shrank
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 400))
    def produce(self, data, tokens) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        if request_id not in self.lost:
            self.scheduler.produced(request_id, tokens, self.now_s)
            model = self.running[request_id]
            if self.scheduler.ledger.held_blocks(model) > (self.scheduler.ledger.capacity_blocks(model) or 0):
                self.over.add(model)  # longer than predicted

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_prefilled=st.booleans())
    def lose_unit_or_go_on(self, data, is_prefilled) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        if request_id not in self.lost:
            self.scheduler.left(request_id, self.now_s)
            self.lost.add(request_id)
            return
        choice = self.scheduler.route(request_id, self.now_s, is_prefilled=is_prefilled)
        if choice is not None:
            assert not (is_prefilled and choice.hands_over), "handed over for ever"
            self.scheduler.sent(request_id, choice, self.now_s)
            self.lost.discard(request_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), finished=st.booleans())
    def end(self, data, finished) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        model = self.running.pop(request_id)
        self.lost.discard(request_id)
        self.scheduler.end(request_id, self.now_s, finished=finished)
        capacity = self.scheduler.ledger.capacity_blocks(model)
        if capacity is None or self.scheduler.ledger.held_blocks(model) <= capacity:
            self.over.discard(model)
        self.pump()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.scheduler.withdraw(request_id)
        self.waiting.discard(request_id)
        self.answered.add(request_id)
        self.pump()

    def pump(self) -> None:
        for request, outcome in self.scheduler.pump(self.now_s):
            self.waiting.remove(request.request_id)
            self.take(request, outcome)

    @invariant()
    def books_balance(self) -> None:
        ledger = self.scheduler.ledger
        assert len(ledger._reservations) == len(self.running)
        assert len(self.scheduler.admission.queues) == len(self.waiting)
        for model in MODELS:
            assert ledger.held_blocks(model) >= 0
            assert self.scheduler.admission.num_waiting(model) <= MAX_WAITING
        assert is_idle(self.scheduler) == (not self.running and not self.waiting)
        next_s = self.scheduler.next_pump_s()
        assert (next_s is None) == (not self.waiting)

    def teardown(self) -> None:
        """However it stands, time and ends settle everything."""
        self.now_s += 2e9
        self.pump()
        while self.running:
            request_id, _ = self.running.popitem()
            self.scheduler.end(request_id, self.now_s, finished=True)
        self.pump()
        assert not self.waiting
        assert is_idle(self.scheduler)
        assert self.answered == {f"r{i + 1}" for i in range(self.number)}
        assert all(self.scheduler.ledger.held_blocks(model) == 0 for model in MODELS)


def test_gateway_scheduler__any_history__books_balance_and_each_is_answered_once() -> None:
    run_state_machine_as_test(
        GatewaySchedulerMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
