"""What the control loop says of models that were given other weights."""

from dataclasses import replace

from fleet_model import World, adapter_model, catalog, catalog_model

from deploy.fleet_file.model_catalog import CatalogModel
from deploy.fleet_file.model_section import ReplicasSection, SloSection
from pdmux_actor.lease import ModelPhase


def ready_by_status(world: World) -> set[str]:
    return {m.model for m in world.loop.status(world.now_s).models if m.is_ready}


def test_status__model_gets_other_weights__is_ready_again_when_its_unit_has_taken_them() -> None:
    """Else `muxfleet apply` would say that it is done before anybody has looked at them."""
    world = World(catalog(catalog_model("a"), "b"), expected_units=1)
    unit = world.start_unit()
    world.beat(10)
    assert ready_by_status(world) == {"a", "b"}

    world.want(catalog(catalog_model("a", source="/other"), "b"))
    assert ready_by_status(world) == {"b"}
    world.beat()  # its report is of before, and is answered with the new lease
    assert ready_by_status(world) == {"b"}
    unit.broken = frozenset("a")
    world.beat(3)
    assert ready_by_status(world) == {"b"}

    unit.broken = frozenset()
    unit.phases["a"] = ModelPhase.LOADING  # it tries again
    world.beat(3)
    assert ready_by_status(world) == {"a", "b"}


def test_status__base_gets_other_weights__its_adapter_is_not_ready_either() -> None:
    world = World(catalog(base := catalog_model("a"), adapter_model("sql", base)), expected_units=1)
    world.start_unit()
    world.beat(10)
    assert ready_by_status(world) == {"a", "sql"}

    world.want(catalog(base := catalog_model("a", source="/other"), adapter_model("sql", base)))
    assert ready_by_status(world) == set()
    world.beat(6)
    assert ready_by_status(world) == {"a", "sql"}


def test_status__control_loop_restarts__models_are_ready_as_before() -> None:
    world = World(catalog("a", "b"), expected_units=1)
    world.start_unit()
    world.beat(10)

    world.restart_control_loop()
    for _ in range(6):
        world.beat()
        assert ready_by_status(world) == {"a", "b"}


def test_card__weights_of_a_model_or_of_its_base__name_what_is_served_and_nothing_else() -> None:
    """By them gateways know that an answer was begun by others."""
    base = catalog_model("a")
    adapter = adapter_model("sql", base)

    def named(model: CatalogModel, **settings: object) -> tuple[str | None, ...]:
        return replace(model, settings=model.settings.model_copy(update=settings)).card().weights

    assert named(base, slo=SloSection(ttft_s=9.0), replicas=ReplicasSection(max=3), max_model_len=64) == named(base)
    for changed in ({"source": "/other"}, {"revision": "v2"}, {"weights": "int8"}):
        assert named(base, **changed) != named(base)
        assert adapter_model(
            "sql", replace(base, settings=base.settings.model_copy(update=changed))
        ).card().weights != (adapter.card().weights)
    assert replace(base, dtype="float16").card().weights != base.card().weights
    assert named(adapter, source="/adapters/other") != adapter.card().weights
