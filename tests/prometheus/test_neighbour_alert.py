"""The alert of models that hold each other up fires by a neighbour with long prompts, on a fleet where nothing keeps
the two apart: prefills come before everybody's decodes, and no unit has room for another plan.
"""

import json
from pathlib import Path

import pytest
from alert_faults import MODEL, NEIGHBOUR
from chaos_fleet_file import fleet_of
from watched_fleet import UNITS, watched_fleet

PORT = 20713
POOL = {"name": "sim", "device": "simulated", "gpu_type": "A40", "gpus_per_node": UNITS, "kv_memory": "8GiB"}
SECTIONS = {"engine": {"policy": "prefill_first"}, "gateway": {"replicas": 2}}


def fleet_file(folder: Path) -> Path:
    """With a target that the suffering model keeps easily while it is alone."""
    file = fleet_of(folder, port=PORT, pools=(POOL,), sections=SECTIONS)
    fleet = json.loads(file.read_text())
    for model in fleet["models"]:
        if model["id"] == MODEL:
            model["slo"] = {"ttft_s": 5.0, "tbt_s": 0.2}
    file.write_text(json.dumps(fleet))
    return file


@pytest.mark.prometheus
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_neighbour__prefills_long_prompts__fires_the_alert_of_the_model_that_it_holds_up(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with watched_fleet(fleet_file(tmp_path), tmp_path_factory.mktemp("prometheus"), port=PORT + 1) as watched:
        told = watched.check(NEIGHBOUR)
    with capsys.disabled():
        print(f"\n  {told}", end="")
