"""Models that share no unit find in one gateway what they would find if each group had a gateway of its own."""

from collections.abc import Sequence

from fleet_values import ask, fleet, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from router.admission.admission import Admit, Queue
from router.gateway_scheduler import GatewayScheduler

Step = tuple[str, int, float]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 3), st.sampled_from([90.0, 300.0, 9000.0])),
        st.tuples(st.just("token"), st.integers(0, 5), st.just(0.0)),
        st.tuples(st.just("end"), st.integers(0, 5), st.just(0.0)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([0.004, 0.3, 2.0])),
    ),
    max_size=60,
)


class History:
    """Steps of a made-up world that go through one scheduler, or only those of some models through another."""

    UNITS = (
        unit("u0", model_load("a0", quota_blocks=20), model_load("a1", quota_blocks=20), total_blocks=40),
        unit("u1", model_load("a1", quota_blocks=20), total_blocks=20),
        unit("v0", model_load("b0", quota_blocks=20), model_load("b1", quota_blocks=20), total_blocks=40),
    )
    MODELS = ("a0", "a1", "b0", "b1")

    def __init__(self, models: Sequence[str]) -> None:
        self.models = models
        self.made = GatewayScheduler(gateway_id="g")
        self.now_s = 0.0
        self.next_view_s = 0.5
        self.told: list[tuple[float, str, str, object]] = []
        self.see()

    def see(self) -> None:
        units = [u for u in self.UNITS if u.report.models[0].model in self.models]
        self.made.update_view(fleet(*units, models=tuple(self.models)), self.now_s)
        self.pump()

    def pump(self, model: str | None = None) -> None:
        for request, outcome in self.made.pump(self.now_s, model):
            self.told.append((self.now_s, request.request_id, request.model, outcome))

    def pass_by(self, until_s: float) -> None:
        while True:
            due = min(((self.made.next_pump_s(m) or 1e9, m) for m in self.models), default=(1e9, ""))
            if min(due[0], self.next_view_s) > until_s:
                break
            if self.next_view_s <= due[0]:
                self.now_s = max(self.now_s, self.next_view_s)
                self.next_view_s += 0.5
                self.see()
            else:
                self.now_s = max(self.now_s, due[0])
                self.pump(due[1])
        self.now_s = until_s

    def offer(self, request) -> None:
        if request.model in self.models:
            decision = self.made.offer(request, self.now_s)
            self.told.append((self.now_s, request.request_id, request.model, decision))
            self.pump(request.model)


@given(steps)
def test_pump__models_that_share_no_unit__find_what_they_would_find_alone(steps: list[Step]) -> None:
    whole, parts = History(History.MODELS), [History(("a0", "a1")), History(("b0", "b1"))]
    worlds = [whole, *parts]
    running: list[tuple[str, str, bool]] = []
    waiting: list[tuple[str, str]] = []
    number = 0
    for what, which, amount in steps:
        if what == "offer":
            number += 1
            request = ask(
                f"r{number}",
                History.MODELS[which],
                prompt_tokens=int(amount),
                max_tokens=10,
                deadline_s=whole.now_s + 3.0,
                tenant=f"t{number % 2}",
            )
            for world in worlds:
                world.offer(request)
        elif what == "wait":
            for world in worlds:
                world.pass_by(whole.now_s + amount if world is whole else whole.now_s)
        told = [(r, m, o) for _, r, m, o in whole.told]
        ended = {r for r, _, o in told if not isinstance(o, Queue)}
        waiting = [(r, m) for r, m, o in told if isinstance(o, Queue) and r not in ended]
        known = {r for r, _, _ in running}
        running += [(r, m, False) for r, m, o in told if isinstance(o, Admit) and r not in known]
        alive = [(i, r, m, has) for i, (r, m, has) in enumerate(running) if m]
        if what in ("token", "end") and alive:
            at, name, model, has_token = alive[which % len(alive)]
            for world in [w for w in worlds if model in w.models]:
                if what == "token" and not has_token:
                    world.made.produced(name, 1, world.now_s)
                elif what == "end":
                    world.made.end(name, world.now_s, finished=True)
                world.pump(model)
            running[at] = (name, "", True) if what == "end" else (name, model, True)
        elif what == "leave" and waiting:
            name, model = waiting[which % len(waiting)]
            for world in [w for w in worlds if model in w.models]:
                world.made.withdraw(name)
                world.told.append((world.now_s, name, model, "left"))
                world.pump(model)

    for part in parts:
        assert part.told == [entry for entry in whole.told if entry[2] in part.models]
