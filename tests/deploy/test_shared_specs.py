from pathlib import Path

from deploy.fleet_file.settings import read_fleet_file
from deploy.planning.fleet_planning import placement_models

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_placement_models__hundred_of_five_shapes__have_five_specs() -> None:
    models = placement_models(read_fleet_file(EXAMPLES / "simulated-1000gpu.yaml"))

    assert len(models) == 100
    assert len({id(model.spec) for model in models}) == len({model.spec for model in models}) == 5
