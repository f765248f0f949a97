"""`make test-k8s` without its CRDs: it fails, and says what to get."""

import os
import subprocess
from pathlib import Path

import pytest
from helm_runner import ROOT, TOOLS

pytestmark = pytest.mark.k8s


def crds_into(folder: Path, source: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "scripts" / "k8s_crds.sh", folder],
        env=os.environ | {"MUXFLEET_CRDS": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_crds__absent__fail_and_say_where_they_are_to_be_had(tmp_path: Path) -> None:
    done = crds_into(tmp_path / "tools", tmp_path / "nowhere")

    assert done.returncode == 1
    assert "MUXFLEET_CRDS" in done.stderr
    assert "KubeRay v1.7.0: ray-operator/config/crd/bases/ray.io_{rayclusters" in done.stderr


def test_crds__one_of_another_version__fails_and_names_it(tmp_path: Path) -> None:
    source = tmp_path / "source" / "deep"
    source.mkdir(parents=True)
    for file in (TOOLS / "crds").glob("*.yaml"):
        (source / file.name).write_bytes(file.read_bytes())
    whole = crds_into(tmp_path / "whole", source.parent)
    with (source / "ray.io_rayservices.yaml").open("a") as file:
        file.write("# another\n")

    changed = crds_into(tmp_path / "changed", source.parent)

    assert whole.returncode == 0, whole.stderr
    assert len(list((tmp_path / "whole" / "crds").iterdir())) == 10
    assert changed.returncode == 1
    assert "ray.io_rayservices.yaml: FAILED" in changed.stdout + changed.stderr
