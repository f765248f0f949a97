"""A request that ends before its first token: what was left of its prompt is nobody's wait any more."""

from fleet_values import ask, fleet, model_load, unit
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.messages import Slo
from router.admission.admission import Admit, Queue
from router.gateway_scheduler import GatewayScheduler
from router.routing.routing_table import RoutingTable, UnreportedLoad

PATIENT = Slo(ttft_s=60.0, tbt_s=0.1)
LONG = 50_000  # tokens: five seconds


def gateway(*units, models: tuple[str, ...] = ("m",)) -> GatewayScheduler:
    made = GatewayScheduler(gateway_id="g")
    made.update_view(fleet(*units, models=models), 0.0)
    return made


def long(request_id: str, model: str = "m"):
    return ask(request_id, model, prompt_tokens=LONG, max_tokens=1, slo=PATIENT)


def roomy(model: str = "m", **changes):
    return model_load(model, **{"quota_blocks": 100_000, **changes})


def admitted(made: GatewayScheduler, now_s: float) -> list[str]:
    return [request.request_id for request, outcome in made.pump(now_s) if isinstance(outcome, Admit)]


def test_end__before_the_first_token__what_waits_behind_the_prompt_goes_at_once() -> None:
    made = gateway(unit("u", roomy(), total_blocks=100_000))
    assert isinstance(made.offer(long("leaves"), 0.0), Admit)
    assert isinstance(made.offer(ask("next", slo=PATIENT), 0.1), Queue)
    assert admitted(made, 0.1) == []

    made.end("leaves", 0.5, finished=False)

    assert admitted(made, 0.5) == ["next"]


def test_end__before_the_first_token__another_models_request_goes_at_once() -> None:
    made = gateway(unit("u", roomy("m"), roomy("other"), total_blocks=200_000), models=("m", "other"))
    assert isinstance(made.offer(long("leaves"), 0.0), Admit)
    assert isinstance(made.offer(ask("next", "other", slo=PATIENT), 0.1), Queue)
    assert made.pump(0.1) == []

    made.end("leaves", 0.5, finished=False)

    assert [request.request_id for request, _ in made.pump(0.5, "m")] == ["next"]


def test_end__before_the_first_token__the_unit_is_chosen_again() -> None:
    made = gateway(unit("a", roomy()), unit("b", roomy(waiting=1, waiting_tokens=10_000)))
    first = made.offer(long("leaves"), 0.0)
    assert isinstance(first, Admit)
    assert first.choice.unit_id == "a"

    made.end("leaves", 0.1, finished=False)

    second = made.offer(long("next"), 0.1)
    assert isinstance(second, Admit)
    assert (second.choice.unit_id, second.choice.wait_s) == ("a", 0.0)


def test_end__report_from_before_it__does_not_bring_the_prompt_back() -> None:
    made = gateway(unit("u", roomy(), total_blocks=100_000))
    assert isinstance(made.offer(long("leaves"), 0.0), Admit)
    made.end("leaves", 1.0, finished=False)
    shows_it = roomy(waiting=1, waiting_tokens=LONG)

    made.update_view(fleet(unit("u", shows_it, age_s=0.1, total_blocks=100_000)), 1.1)  # of 0.7 at the latest
    assert isinstance(made.offer(ask("next"), 1.1), Admit)
    made.end("next", 1.1, finished=False)

    made.update_view(fleet(unit("u", shows_it, age_s=0.1, total_blocks=100_000)), 2.1)  # another gateway's
    assert isinstance(made.offer(ask("waits"), 2.1), Queue)


def test_left__requests_of_which_nothing_was_predicted__do_not_push_out_a_prompt_that_reports_show() -> None:
    own = UnreportedLoad(RoutingTable.of(fleet(unit("a", age_s=0.0)), 0.0))
    own.sent("long", "a", prefill_s=5.0, now_s=0.0)
    own.left("long", 1.0)
    for i in range(100):
        own.sent(f"r{i}", "a", prefill_s=0.0, now_s=1.0)
        own.left(f"r{i}", 1.0)

    shows_it = unit("a", roomy(waiting=1, waiting_tokens=LONG), age_s=0.1)
    own.rebase(RoutingTable.of(fleet(shows_it), 1.1))  # of 0.7 at the latest

    assert own.free_at_s[0] < 1.0


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.integers(100, 200)), min_size=1, max_size=8, unique_by=lambda p: p[1]),
    st.integers(0, 7),
    st.floats(0.0, 30.0),
)
def test_left__in_the_midst_of_prefills__the_others_are_done_when_the_unit_has_computed_theirs(
    prefills: list[tuple[float, int]], who: int, now_s: float
) -> None:
    """The unit computes them one after the other, by due time, and has told no first token."""
    own = UnreportedLoad(RoutingTable.of(fleet(unit("a", age_s=0.0)), 0.0))
    for i, (prefill_s, due_s) in enumerate(prefills):
        own.sent(f"r{i}", "a", prefill_s=prefill_s, now_s=0.0, due_s=float(due_s))
    leaver = who % len(prefills)
    left_s, done_s = 0.0, now_s
    for i in sorted(range(len(prefills)), key=lambda i: prefills[i][1]):
        computed_s = min(done_s, prefills[i][0])
        done_s -= computed_s
        left_s += 0.0 if i == leaver else prefills[i][0] - computed_s

    own.left(f"r{leaver}", now_s)

    assert abs(max(0.0, own.free_at_s[0] - now_s) - left_s) < 1e-6


def test_first_output__half_a_character__tells_that_the_prompt_is_done() -> None:
    made = gateway(unit("u", roomy(), total_blocks=100_000))
    assert isinstance(made.offer(long("halves"), 0.0), Admit)
    assert isinstance(made.offer(ask("next", slo=PATIENT), 0.1), Queue)
    assert made.admission.num_waiting("m") == 2

    assert made.produced("halves", 0, 1.0)

    assert admitted(made, 1.0) == ["next"]
    assert made.admission.num_waiting("m") == 1
    made.produced("halves", 2, 1.1)
    made.end("halves", 1.2, finished=True)
    assert made.admission.num_waiting("m") == 1


def test_slo_left__moved_after_half_a_character__is_whole_as_after_a_token() -> None:
    made = gateway(unit("u", roomy(), total_blocks=100_000))
    assert isinstance(made.offer(long("first"), 0.0), Admit)
    assert isinstance(made.offer(ask("halves", slo=PATIENT), 1.0), Queue)
    made.end("first", 3.0, finished=False)
    assert admitted(made, 3.0) == ["halves"]
    assert made.slo_left("halves").ttft_s == PATIENT.ttft_s - 2.0

    made.produced("halves", 0, 3.1)
    made.left("halves", 3.2)

    assert made.slo_left("halves") == PATIENT


def test_first_output__on_the_second_unit__tells_that_the_prompt_is_done_there() -> None:
    made = gateway(unit("a", roomy()), unit("b", roomy()))
    moved = made.offer(long("moved"), 0.0)
    assert isinstance(moved, Admit)
    made.produced("moved", 1, 5.0)
    made.left("moved", 6.0)
    choice = made.route("moved", 6.0, avoid={moved.choice.unit_id}, is_prefilled=True)
    assert choice is not None
    made.sent("moved", choice, 6.0)
    made.produced("moved", 1, 7.0)
    assert isinstance(made.offer(ask("other", prompt_tokens=90), 7.0), Admit)

    made.set_unreachable({moved.choice.unit_id})
    made.produced("other", 1, 7.1)

    last = made.offer(long("last"), 7.1)
    assert isinstance(last, Admit)
    assert (last.choice.unit_id, last.choice.wait_s) == (choice.unit_id, 0.0)
