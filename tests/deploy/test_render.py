import json
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deploy.fleet_file.settings import FleetFile, fleet_json_schema, parse_fleet_file, read_fleet_file
from deploy.local.demo_fleet import FLEET_TEXT
from deploy.serve.app_args import CONTROLLER_DEPLOYMENT, GatewayArgs, UnitShape
from deploy.serve.controller_config import ControllerConfig
from deploy.serve.gateway_application import gateway_limits
from deploy.serve.render import (
    application_names,
    controller_config,
    logical_cpus,
    serve_config,
    serve_yaml,
    without_node_labels,
)
from deploy.serve.units_application import actor_settings
from pdmux_actor.serving.engine_watch import WatchSettings

EXAMPLES = Path(__file__).parents[2] / "examples"

TWO_POOLS = """
models: [{id: a, source: org/a}]
pools:
  - {name: big, device: simulated, gpu_type: H200, gpus_per_node: 8, mesh_gpus: 4, nodes: {min: 2, max: 2}}
  - {name: small, device: cpu, cores: 2}
"""


def fleet_of(text: str) -> FleetFile:
    return parse_fleet_file(text, name="f.yaml", base=Path("/fleet"))


def application(config: dict, name: str) -> dict:
    return next(a for a in config["applications"] if a["name"] == name)


@pytest.mark.parametrize("rendered", sorted((EXAMPLES / "serve").glob("*.yaml")), ids=lambda path: path.stem)
def test_serve_yaml__examples__are_the_checked_in_ones(rendered: Path) -> None:
    fleet = read_fleet_file(EXAMPLES / rendered.name, source_root=Path("/models"))

    assert serve_yaml(fleet) == rendered.read_text(), "stale: run `make chart`"


@pytest.mark.parametrize(("device", "kind"), [("cpu", "torch_cpu"), ("cuda", "torch_cuda"), ("simulated", "simulated")])
def test_actor_settings__device_of_a_pool__is_its_engines(device: str, kind: str) -> None:
    fleet = fleet_of(f"models: [{{id: a, source: org/a}}]\npools: [{{device: {device}}}]")
    shape = UnitShape.model_validate(application(serve_config(fleet), "units-default")["args"])

    assert actor_settings(shape).engine.kind == kind


def test_actor_settings__gpu__cuts_prompts_where_its_memory_is_planned_for_no_more() -> None:
    fleet = fleet_of(
        "models: [{id: a, source: org/a}]\nengine: {max_batch_tokens: 4096}\n"
        "pools: [{name: gpus, device: cuda}, {name: cores, device: cpu}]"
    )
    config = serve_config(fleet)
    shapes = [UnitShape.model_validate(application(config, f"units-{p}")["args"]) for p in ("gpus", "cores")]

    longest = [actor_settings(shape).engine.scheduler.longest_chunk_tokens for shape in shapes]

    assert longest == [4096, None]


def test_examples__demo__is_what_the_demo_writes() -> None:
    assert (EXAMPLES / "demo.yaml").read_text() == FLEET_TEXT


def test_examples__schema__is_current() -> None:
    assert json.loads((EXAMPLES / "fleet.schema.json").read_text()) == fleet_json_schema()


@pytest.mark.parametrize("text", [FLEET_TEXT, TWO_POOLS], ids=["demo", "two pools"])
def test_serve_yaml__any_fleet__is_accepted_by_serve_as_it_stands(text: str) -> None:
    config = yaml.safe_load(serve_yaml(fleet_of(text)))

    accepted = ServeDeploySchema.model_validate(config)

    assert tuple(a.name for a in accepted.applications) == application_names(fleet_of(text))
    for app in accepted.applications:
        known = {d.name: d for d in app.deployments}
        for deployment in application(config, app.name)["deployments"]:
            assert deployment.keys() <= known[deployment["name"]].model_fields_set, (
                "Serve ignores keys it does not know"
            )


def test_serve_config__two_pools__has_one_application_per_pool_with_all_its_units() -> None:
    big, small = (application(serve_config(fleet_of(TWO_POOLS)), f"units-{pool}") for pool in ("big", "small"))

    assert [(d["name"], d["num_replicas"]) for d in (*big["deployments"], *small["deployments"])] == [
        ("Unit", 4),
        ("Unit", 1),
    ]
    assert [UnitShape.model_validate(a["args"]).num_gpus for a in (big, small)] == [4, 1]
    assert controller_config(fleet_of(TWO_POOLS)).expected_units == {"big": 4, "small": 1}


def test_serve_config__models_slos_and_policy_change__only_user_config_changes() -> None:
    before = fleet_of(FLEET_TEXT)
    model = before.models[0]
    after = before.model_copy(
        update={
            "models": (model.model_copy(update={"slo": model.slo.model_copy(update={"ttft_s": 9.0})}),),
            "engine": before.engine.model_copy(update={"policy": "prefill_first"}),
        }
    )

    old, new = serve_config(before), serve_config(after)

    for config in (old, new):
        controllers = application(config, "control")["deployments"]
        changed = next(d for d in controllers if d["name"] == CONTROLLER_DEPLOYMENT).pop("user_config")
        ControllerConfig.model_validate(changed)
    assert old == new


def test_serve_config__args__pass_their_builders_types() -> None:
    config = serve_config(fleet_of(FLEET_TEXT))

    GatewayArgs.model_validate(application(config, "gateway")["args"])
    UnitShape.model_validate(config["applications"][0]["args"])


def test_watch__of_the_fleet_file__reaches_units_and_gateways() -> None:
    text = TWO_POOLS + "engine: {watch: {kill_s: 20, load_s: 60}}\ngateway: {unit_suspect_s: 1.5, unit_lost_s: 4}\n"
    config = serve_config(fleet_of(text))

    shapes = [UnitShape.model_validate(application(config, f"units-{p}")["args"]) for p in ("big", "small")]
    watches = [actor_settings(shape).watch for shape in shapes]
    limits = gateway_limits(GatewayArgs.model_validate(application(config, "gateway")["args"]))

    assert watches == [WatchSettings(kill_s=20, load_s=60)] * 2
    assert (limits.suspect_s, limits.lost_s) == (1.5, 4)


def test_controller_config__round_trip_through_json__loses_nothing() -> None:
    config = controller_config(fleet_of(FLEET_TEXT))

    assert ControllerConfig.model_validate(json.loads(json.dumps(config.as_user_config()))) == config


def test_serve_yaml__haproxy__names_the_environment_it_needs() -> None:
    text = serve_yaml(fleet_of("models: [{id: a, source: x}]\ngateway: {proxy: haproxy}"))

    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in text.splitlines()[1]


def test_logical_cpus__fleet__covers_all_actors() -> None:
    assert logical_cpus(fleet_of(TWO_POOLS)) == pytest.approx(4 * 0.1 + 2.0 + 3 * 0.1)


def test_serve_config__pools_with_node_labels__units_are_placed_on_their_nodes_only() -> None:
    labels = {"muxfleet.io/pool": "big"}
    text = "models: [{id: a, source: x}]\npools: [{name: big, node_labels: {muxfleet.io/pool: big}}, {name: any}]\n"

    def selectors(fleet: FleetFile) -> list[object]:
        apps = [application(serve_config(fleet), f"units-{p}") for p in ("big", "any")]
        return [a["deployments"][0]["ray_actor_options"].get("label_selector") for a in apps]

    assert selectors(fleet_of(text)) == [labels, None]
    assert selectors(without_node_labels(fleet_of(text))) == [None, None]


@pytest.mark.parametrize(
    ("pool", "most"),
    [
        ("device: simulated, gpu_type: A40, gpus_per_node: 4, mesh_gpus: 2, nodes: {min: 1, max: 3}", 2),
        ("device: cpu, nodes: {min: 1, max: 3}", 1),
        ("device: cuda, gpu_type: A40, nodes: {min: 1, max: 3}", None),  # Ray counts GPUs
        ("device: simulated, gpu_type: A40, nodes: {min: 3}", 1),  # the same, so that nodes.max restarts no unit
    ],
)
def test_serve_config__pool_with_nodes_of_its_own__no_node_takes_more_units_than_belong_there(
    pool: str, most: int | None
) -> None:
    fleet = fleet_of(f"models: [{{id: a, source: x}}]\npools: [{{name: p, node_labels: {{of: p}}, {pool}}}]\n")

    def most_on_a_node(fleet: FleetFile) -> object:
        return application(serve_config(fleet), "units-p")["deployments"][0].get("max_replicas_per_node")

    assert most_on_a_node(fleet) == most
    assert most_on_a_node(without_node_labels(fleet)) is None  # one machine stands for all nodes
