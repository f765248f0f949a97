from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad
from router.routing import OwnLoad, choose_unit, load_of
from router.view import FleetView, UnitView

NO_LOAD = OwnLoad(now={}, at_view={})


def unit(
    name: str,
    *,
    running: int = 0,
    waiting: int = 0,
    gpus: int = 1,
    age_s: float = 0.1,
    phase: ModelPhase = ModelPhase.READY,
    max_model_len: int = 1000,
) -> UnitView:
    load = LoadReport(
        models=(
            ModelLoad(
                model="m",
                running=running,
                waiting=waiting,
                used_blocks=0,
                quota_blocks=0,
                preemptions_total=0,
                prompt_tokens_total=0,
                output_tokens_total=0,
            ),
        ),
        total_blocks=1,
        free_blocks=1,
        prefill_sms=1,
        decode_sms=1,
        steps_total=0,
    )
    report = UnitReport(
        unit_id=name,
        node="n",
        pool="p",
        num_gpus=gpus,
        endpoint=f"{name}:1",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=1,
        lease_version=1,
        models=(ModelStatus(model="m", phase=phase, max_model_len=max_model_len),),
        load=load,
    )
    return UnitView(report=report, age_s=age_s)


def view(*units: UnitView) -> FleetView:
    return FleetView(models=(), units=units, stream_token="t")


def chosen(*units: UnitView, own: OwnLoad = NO_LOAD, **options) -> str | None:
    choice = choose_unit(view(*units), "m", own=own, **options)
    return None if choice is None else choice.unit_id


def test_choose__loads_differ__takes_the_least_loaded_per_gpu() -> None:
    assert chosen(unit("a", running=3), unit("b", running=1, waiting=1)) == "b"
    assert chosen(unit("a", running=3), unit("b", running=4, gpus=2)) == "b"


def test_choose__own_requests_since_the_report__count() -> None:
    own = OwnLoad(now={"a": 5}, at_view={"a": 2})
    assert load_of(unit("a", running=2), own) == 5
    assert chosen(unit("a", running=2), unit("b", running=4), own=own) == "b"


def test_choose__report_does_not_show_own_requests_yet__they_count_still() -> None:
    own = OwnLoad(now={"a": 5}, at_view={"a": 5})
    assert load_of(unit("a"), own) == 5


def test_choose__model_not_ready_or_unknown__is_none() -> None:
    assert chosen(unit("a", phase=ModelPhase.LOADING), unit("b", phase=ModelPhase.DRAINING)) is None
    assert choose_unit(view(unit("a")), "other", own=NO_LOAD) is None


def test_choose__context_too_short__is_passed_over() -> None:
    assert chosen(unit("a", max_model_len=100), unit("b", running=9), needed_tokens=101) == "b"
    assert chosen(unit("a", max_model_len=100), needed_tokens=101) is None


def test_choose__stale_report__comes_last_but_comes() -> None:
    assert chosen(unit("a", age_s=60), unit("b", running=50)) == "b"
    assert chosen(unit("a", age_s=60)) == "a"


def test_choose__avoided__is_left_out() -> None:
    assert chosen(unit("a"), unit("b", running=9), avoid={"a"}) == "b"
    assert chosen(unit("a"), avoid={"a"}) is None


def test_choose__equal_loads__gateways_spread_and_each_is_deterministic() -> None:
    units = [unit(f"u{i}") for i in range(8)]
    picks = {chosen(*units, salt=f"gateway-{i}") for i in range(40)}
    assert len(picks) > 3
    assert chosen(*units, salt="g") == chosen(*reversed(units), salt="g")


units_strategy = st.lists(
    st.builds(
        unit,
        st.uuids().map(str),
        running=st.integers(0, 9),
        waiting=st.integers(0, 9),
        gpus=st.integers(1, 8),
        age_s=st.floats(0, 100),
        phase=st.sampled_from(list(ModelPhase)),
    ),
    max_size=8,
    unique_by=lambda u: u.report.unit_id,
)


@given(units=units_strategy, salt=st.text(max_size=4), data=st.data())
def test_choose__any_view__is_ready_order_free_and_never_beaten(units, salt, data) -> None:
    shuffled = data.draw(st.permutations(units))
    choice = chosen(*units, salt=salt)
    ready = {u.report.unit_id: u for u in units if u.report.models[0].phase is ModelPhase.READY}

    assert chosen(*shuffled, salt=salt) == choice
    assert (choice is None) == (not ready)
    if choice is not None:
        taken = ready[choice]
        peers = [u for u in ready.values() if (u.age_s > 5.0) == (taken.age_s > 5.0)]
        assert load_of(taken, NO_LOAD) == min(load_of(u, NO_LOAD) for u in peers)
        assert taken.age_s <= 5.0 or all(u.age_s > 5.0 for u in ready.values())


@given(units=units_strategy)
def test_choose__requests_in_a_burst__spread_until_loads_are_level(units) -> None:
    ready = [replace(u, age_s=0.0) for u in units if u.report.models[0].phase is ModelPhase.READY]
    counts: dict[str, int] = {}
    for _ in range(40 if ready else 0):
        choice = chosen(*ready, own=OwnLoad(now=counts, at_view={}))
        counts[choice] = counts.get(choice, 0) + 1

    own = OwnLoad(now=counts, at_view={})
    for busy in (u for u in ready if u.report.unit_id in counts):
        step = 1 / busy.report.num_gpus
        assert load_of(busy, own) - step <= min(load_of(u, own) for u in ready) + 1e-9
