"""Labels of nodes in a fleet file: what Kubernetes takes as labels."""

from pathlib import Path

import pytest

from deploy.errors import FleetFileError
from deploy.fleet_file.settings import parse_fleet_file

MODEL = "models: [{id: m, source: x}]\n"


@pytest.mark.parametrize("key", ["zoné", "a" * 64, "a.io/" + "b" * 64, "-a.io/b", "a..io/b", "A.io/b", "/b"])
def test_node_labels__key_that_kubernetes_refuses__is_refused(key: str) -> None:
    with pytest.raises(FleetFileError, match="must be at most 63 of a-z, A-Z, 0-9 and"):
        parse_fleet_file(MODEL + f"pools: [{{node_labels: {{{key!r}: a}}}}]", name="f.yaml", base=Path())


@pytest.mark.parametrize("key", ["a", "a_B.c-d", "a" * 63, "muxfleet.io/pool", "a-1.b.io/" + "c" * 63])
def test_node_labels__key_that_kubernetes_takes__is_taken(key: str) -> None:
    fleet = parse_fleet_file(MODEL + f"pools: [{{node_labels: {{{key!r}: a_B.c-d}}}}]", name="f.yaml", base=Path())

    assert fleet.pools[0].node_labels == {key: "a_B.c-d"}


def test_node_labels__value_with_letters_that_kubernetes_refuses__is_refused() -> None:
    with pytest.raises(FleetFileError, match='"müller": must be a-z, A-Z, 0-9 and'):
        parse_fleet_file(MODEL + "pools: [{node_labels: {zone: müller}}]", name="f.yaml", base=Path())
