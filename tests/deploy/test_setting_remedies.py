"""What a fleet file is answered that contradicts itself, or misses how a section is written."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from deploy.errors import FleetFileError, SourceNotFound
from deploy.fleet_file.model_specs import read_model_spec
from deploy.fleet_file.settings import parse_fleet_file

MODEL = "models: [{id: a, source: x}]\n"
MODEL_KEYS = "id, base, adapter, source, revision, dtype, weights, max_model_len, slo, demand, replicas"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            MODEL + "pools: [{nodes: 2}]",
            "f.yaml:2: pools[0].nodes = 2: must be a mapping of keys to values: min, max",
        ),
        (
            MODEL + "gateway: true",
            "f.yaml:2: gateway = true: must be a mapping of keys to values: host, port, replicas, node_labels, proxy, ",
        ),
        (
            "models: [{id: a, source: x, slo: 0.2}]",
            "f.yaml:1: models[0].slo = 0.2: must be a mapping of keys to values: ttft_s, tbt_s",
        ),
        (
            "models: [{id: a, source: x, kind: embedding}]",
            f'f.yaml:1: models[0].kind = "embedding": unknown key; did you mean id? known here: {MODEL_KEYS}',
        ),
        (
            "models: [{id: a, source: x, replicas: {min: 3, max: 2}}]",
            "f.yaml:1: models[0].replicas.max = 2: smaller than min (3); raise it or lower min",
        ),
        (
            MODEL + "gateway: {unit_suspect_s: 20, unit_lost_s: 5}",
            "f.yaml:2: gateway.unit_lost_s = 5.0: smaller than unit_suspect_s (20); raise it or lower unit_suspect_s",
        ),
        (
            MODEL + "engine: {watch: {suspect_s: 12}}",
            "f.yaml:2: engine.watch.kill_s = 10.0: smaller than suspect_s (12); raise it or lower suspect_s",
        ),
    ],
)
def test_fleet_file__not_usable__line_has_place_value_and_remedy(text: str, line: str) -> None:
    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(text, name="f.yaml", base=Path())
    (problem,) = refused.value.problems
    assert problem.startswith(line)


def test_source__hub_is_not_reachable__says_where_it_was_looked_for_and_how_to_name_a_mirror(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(SourceNotFound, match=r"https?://\S+ is not reachable .* a mirror in HF_ENDPOINT"):
        read_model_spec("a", "nobody/no-such-model", None, None)
