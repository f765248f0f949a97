"""models[].weights: what a fleet file may say, where it goes, and what is refused."""

from pathlib import Path

import pytest

from deploy.errors import FleetFileError
from deploy.fleet_file.model_catalog import CatalogModel
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.planning.fleet_planning import _placement_models

EXAMPLES = Path(__file__).parents[2] / "examples"


def fleet_of(model: str, pool: str = "") -> FleetFile:
    text = f"models: [{{id: m, source: ./models/llama-3.1-8b, {model}}}]\npools: [{{{pool}}}]\n"
    return parse_fleet_file(text, name="f.yaml", base=EXAMPLES)


def test_weights__as_written__reach_plans_and_units() -> None:
    fleet = fleet_of("weights: int8", "device: simulated, gpu_type: H100")
    planned = next(iter(_placement_models(fleet))).spec
    catalog = CatalogModel(settings=fleet.models[0], dtype=None, created_s=0, spec=planned)

    assert planned.weights == "int8"
    assert catalog.assignment(7).weights == "int8"


@pytest.mark.parametrize(
    ("model", "pool", "line"),
    [
        ("weights: int3", "", 'f.yaml:1: models[0].weights = "int3": must be one of: int8, int4 or dtype'),
        (
            "weights: int8",
            "device: cuda, gpu_type: H100, backend: sglang",
            'f.yaml:1: models[0].weights = "int8": SGLang quantises by its own argument: remove it, and set '
            "pools[].sglang.args: {torchao_config: int8wo}",
        ),
    ],
)
def test_weights__that_cannot_be__are_refused_with_the_remedy(model: str, pool: str, line: str) -> None:
    with pytest.raises(FleetFileError) as refusal:
        fleet_of(model, pool)

    assert line in str(refusal.value)
