"""What is written in a fleet file is taken as written, or refused: not as what YAML 1.1 or pydantic make of it."""

import json
from pathlib import Path

import pytest

from deploy.errors import FleetFileError
from deploy.fleet_file.settings import fleet_json_schema, parse_fleet_file
from deploy.fleet_file.yaml_source import parse_yaml

MODEL = "models: [{id: a, source: x}]\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "gateway: {port: 08000}",
            'f.yaml:2: gateway.port = "08000": must be a whole number',
        ),
        (
            "gateway: {port: 021431}",
            "f.yaml:2: gateway.port: 021431 is octal, which is 8985; write the number without a 0 before it",
        ),
        ("gateway: {port: 12:30:00}", 'f.yaml:2: gateway.port = "12:30:00": must be a whole number'),
        (
            "pools: [{kv_memory: '1,5GiB'}]",
            'f.yaml:2: pools[0].kv_memory = "1,5GiB": must be a size such as 256MiB',
        ),
        (
            "pools: [{host_memory: 64GiB/unit}]",
            'f.yaml:2: pools[0].host_memory = "64GiB/unit": must be a size such as 256MiB',
        ),
        (
            "gateway: {max_body_bytes: 2001-01-01}",
            'f.yaml:2: gateway.max_body_bytes = "2001-01-01": must be a size such as 256MiB',
        ),
        (
            r'gateway: {api_keys: "keys\0"}',
            r"f.yaml:2: gateway.api_keys: 'keys\x00' holds the character '\x00'; remove it",
        ),
        (
            r'state: {folder: "\ud800"}',
            r"f.yaml:2: state.folder: '\ud800' holds the character '\ud800'; remove it",
        ),
        (
            'pools: [{name: "\\e[31m"}]',
            r"f.yaml:2: pools[0].name: '\x1b[31m' holds the character '\x1b'; remove it",
        ),
        (
            "on: x",
            'f.yaml:2: on = "x": unknown key; known here: name, models, pools, engine, placement, gateway, drain, '
            "state",
        ),
        (
            "pools: [{node_labels: [a]}]",
            'f.yaml:2: pools[0].node_labels = ["a"]: must be a mapping of keys to values',
        ),
    ],
)
def test_fleet_file__value_that_others_would_reread__is_refused_by_its_field(text: str, line: str) -> None:
    with pytest.raises(FleetFileError) as refused:
        parse_fleet_file(MODEL + text, name="f.yaml", base=Path())
    assert refused.value.problems == (line,)


def test_fleet_file__time_of_day_and_label_without_quotes__are_what_is_written() -> None:
    data = parse_yaml("{start: 19:00, node_labels: {on: x, 1: y, <<: {no: z}}}", "f.yaml").data

    assert data == {"start": "19:00", "node_labels": {"on": "x", "1": "y", "no": "z"}}


def test_schema__sizes__have_an_end() -> None:
    (pattern, *others) = {
        line.strip() for line in json.dumps(fleet_json_schema(), indent=1).splitlines() if r"\\d*\\.?\\d+" in line
    }

    assert pattern.rstrip('",').endswith("$")
    assert all(other.rstrip('",').endswith("$") for other in others)
