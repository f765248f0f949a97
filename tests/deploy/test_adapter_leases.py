"""Adapters in the control loop: wherever their base is, by lease alone."""

from fleet_model import TOTAL_BLOCKS, World, adapter_model, catalog, catalog_model

from deploy.control.leases import shares
from deploy.fleet_file.model_section import ModelSection
from deploy.fleet_file.model_specs import with_adapters_folded
from placement.demand import ModelDemand

BASE = catalog_model("llama")
FAMILY = (BASE, adapter_model("sql", BASE), adapter_model("legal", BASE))


def quotas(unit) -> dict[str, int]:
    return {a.model: a.quota_blocks for a in unit.lease.models}


def test_lease__base_with_adapters__names_them_with_parts_of_its_quota() -> None:
    world = World(catalog(*FAMILY, "other"), expected_units=1)
    unit = world.start_unit()
    world.beat(10)

    assert unit.ready() == {"llama", "sql", "legal", "other"}
    assert {a.model: (a.base, a.source) for a in unit.lease.models if a.base} == {
        "sql": ("llama", "/adapters/sql"),
        "legal": ("llama", "/adapters/legal"),
    }
    placed = {p.model: p.quota_blocks for p in world.loop.status(world.now_s).plan.models_of(unit.unit_id)}
    assert placed.keys() == {"llama", "other"}
    assert sum(quotas(unit).values()) == sum(placed.values()) <= TOTAL_BLOCKS
    assert sum(q for m, q in quotas(unit).items() if m != "other") == placed["llama"]


def test_lease__adapter_that_is_asked_for_more__gets_more_of_the_quota() -> None:
    world = World(catalog(*FAMILY), expected_units=1)
    unit = world.start_unit()
    world.beat(60, asks={"sql": 20})

    assert quotas(unit)["sql"] > quotas(unit)["llama"] > 0
    assert quotas(unit)["legal"] > 0


def test_adapter__nobody_asks__leaves_by_lease_alone_and_comes_back_with_the_next_request() -> None:
    model = adapter_model("sql", BASE, sleeps_after_s=20.0)
    world = World(catalog(BASE, model), expected_units=1)
    unit = world.start_unit()
    world.beat(5, asks={"sql": 1})
    assert unit.ready() == {"llama", "sql"}
    plans = len(world.decided("plan"))

    world.beat(60)
    assert unit.ready() == {"llama"}
    assert quotas(unit)["llama"] == sum(quotas(unit).values())

    world.ask("sql")
    world.beat(4)
    assert unit.ready() == {"llama", "sql"}
    assert len(world.decided("plan")) == plans


def test_base__may_sleep_but_an_adapter_is_asked_for__stays() -> None:
    base = catalog_model("llama", sleeps_after_s=20.0)
    world = World(catalog(base, adapter_model("sql", base, sleeps_after_s=20.0)), expected_units=1)
    unit = world.start_unit()
    world.beat(100, asks={"sql": 1})
    assert unit.ready() == {"llama", "sql"}

    world.beat(100)
    assert unit.ready() == set()


def test_control_loop__restarts__adopts_the_family_as_one_model() -> None:
    world = World(catalog(*FAMILY), expected_units=1)
    unit = world.start_unit()
    world.beat(10)
    before = quotas(unit)

    world.restart_control_loop()
    world.beat(10)

    assert unit.ready() == {"llama", "sql", "legal"}
    assert sum(quotas(unit).values()) == sum(before.values())
    assert [p.model for p in world.loop.status(world.now_s).plan.models_of(unit.unit_id)] == ["llama"]


def test_drain__unit_with_adapters__the_other_has_them_before_it_lets_go() -> None:
    world = World(catalog(*FAMILY), expected_units=2)
    units = [world.start_unit(), world.start_unit()]
    world.beat(10)
    (home,) = [u for u in units if u.ready()]
    (other,) = [u for u in units if u is not home]

    home.wants_to_leave = True
    for _ in range(60):
        world.beat()
        assert all(world.serving(model) for model in ("llama", "sql", "legal"))

    assert other.ready() == {"llama", "sql", "legal"}
    assert home.ready() == set()


def test_status__adapter__is_planned_where_its_base_is() -> None:
    world = World(catalog(*FAMILY), expected_units=1)
    unit = world.start_unit()
    world.beat(10)

    states = {m.model: m for m in world.loop.status(world.now_s).models}
    assert {m: s.planned_units for m, s in states.items()} == dict.fromkeys(states, (unit.unit_id,))
    assert [s.problem for s in states.values()] == [None] * 3
    assert world.loop.explain("sql", world.now_s).model.model == "llama"


def test_fold__adapters__add_their_demand_and_keep_the_tightest_targets() -> None:
    base = {"id": "llama", "source": "/m", "demand": {"rate_per_s": 1, "prompt_tokens": 100}, "replicas": {"min": 0}}
    sql = {"id": "sql", "base": "llama", "adapter": "/a", "demand": {"rate_per_s": 3, "prompt_tokens": 500}}
    models = [ModelSection.model_validate(m) for m in (base, {**sql, "slo": {"ttft_s": 0.5}})]

    (folded,) = with_adapters_folded(models)

    assert (folded.demand.rate_per_s, folded.demand.prompt_tokens) == (4.0, 400)
    assert (folded.slo.ttft_s, folded.slo.tbt_s) == (0.5, 0.2)
    assert folded.replicas.min == 1


def test_shares__of_a_quota__half_equal_half_by_tokens_in_powers_of_two() -> None:
    def of(rate_per_s: float) -> ModelDemand:
        return ModelDemand(model="m", rate_per_s=rate_per_s, prompt_tokens=100, output_tokens=28)

    assert shares(1000, []) == [1000]
    assert shares(1000, [of(1), of(1.1)]) == [500, 500]
    assert shares(1000, [of(1), of(8), of(0)]) == [223, 611, 166]
    assert shares(1000, [of(0), of(0)]) == [500, 500]
