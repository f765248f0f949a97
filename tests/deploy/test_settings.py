import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from deploy.errors import FleetFileError, SourceNotFound
from deploy.fleet_file.settings import check_sources, fleet_json_schema, parse_fleet_file, read_fleet_file
from profiler.devices import DEVICES

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "models: [{id: a, source: x}]\n"

BAD_FILES = {
    "empty": ("", ["f.yaml: the file is empty; start from examples/demo.yaml"]),
    "only comments": ("# nothing\n", ["f.yaml: the file is empty; start from examples/demo.yaml"]),
    "not a mapping": ("- a", ['f.yaml:1: the file = ["a"]: must be a mapping of keys to values']),
    "syntax": ("models:\n  - {id: a, source: x\nb: 1", ["f.yaml:3: not valid YAML: expected ',' or '}', but got ':'"]),
    "no models": ("name: x", ["f.yaml:1: models: required, but missing"]),
    "empty models": ("models: []", ["f.yaml:1: models = []: needs at least 1 item"]),
    "unknown key, near": (
        "models:\n  - id: a\n    source: x\n    slo: {ttft: 1}\n",
        ["f.yaml:4: models[0].slo.ttft = 1: unknown key; did you mean ttft_s?"],
    ),
    "gpu_type, nearly": (
        MODEL + "pools: [{name: p, device: cuda, gpu_type: A100}]",
        ['f.yaml:2: pools[0].gpu_type = "A100": unknown device; did you mean A100-80G? known: ' + ", ".join(DEVICES)],
    ),
    "unknown key, far": (
        MODEL + "zebra: 1\n",
        ["f.yaml:2: zebra = 1: unknown key; known here: name, models, pools, engine, placement, gateway, drain, state"],
    ),
    "missing and misspelt": (
        "models:\n  - id: a\n    surce: ./x\n",
        [
            "f.yaml:2: models[0].source: required, but missing",
            'f.yaml:3: models[0].surce = "./x": unknown key; did you mean source?',
        ],
    ),
    "duplicate key": (
        "models: [{id: a, source: x}]\nname: b\nname: c",
        ["f.yaml:3: name: the key appears twice (first in line 2); keep one"],
    ),
    "duplicate key deep inside": (
        "models:\n  - id: a\n    id: b\n    source: x",
        ["f.yaml:3: models[0].id: the key appears twice (first in line 2); keep one"],
    ),
    "duplicate model": (
        "models:\n  - {id: a, source: x}\n  - {id: a, source: y}",
        ['f.yaml:3: models[1].id = "a": also models[0].id; choose another'],
    ),
    "duplicate pool": (
        MODEL + "pools: [{name: p}, {name: p}]",
        ['f.yaml:2: pools[1].name = "p": also pools[0].name; choose another'],
    ),
    "wrong types": (
        MODEL + "gateway: {port: '80', replicas: 1.5, hold_s: .inf, host: 3}",
        [
            "f.yaml:2: gateway.host = 3: must be a string (put it in quotes)",
            'f.yaml:2: gateway.port = "80": must be a whole number',
            "f.yaml:2: gateway.replicas = 1.5: must be a whole number",
            "f.yaml:2: gateway.hold_s = Infinity: must be a finite number",
        ],
    ),
    "yes is not a number": (
        MODEL + "gateway: {replicas: yes}",
        ["f.yaml:2: gateway.replicas = true: must be a whole number"],
    ),
    "out of range": (
        MODEL + "gateway: {port: 70000, replicas: 0}",
        [
            "f.yaml:2: gateway.port = 70000: must be at most 65535",
            "f.yaml:2: gateway.replicas = 0: must be at least 1",
        ],
    ),
    "one role": (
        MODEL + "pools: [{name: p, role: prefill}]",
        ['f.yaml:2: pools[0].role = "prefill": no pool has role decode; give one that role, or remove this one'],
    ),
    "a pool without a role": (
        MODEL + "pools: [{name: p, role: prefill}, {name: q, role: decode}, {name: r}]",
        [
            "f.yaml:2: pools[2].role: other pools have a role, and this one has none; set prefill or decode here, or "
            "remove theirs"
        ],
    ),
    "roles where KV cannot be moved": (
        MODEL + "pools: [{name: p, role: prefill, mesh_gpus: 2}, {name: q, role: decode, device: simulated}]",
        [
            f'f.yaml:2: pools[{i}].role = "{role}": KV of these units cannot be moved; only that of backend native on '
            "cpu with mesh_gpus 1; remove it"
            for i, role in enumerate(("prefill", "decode"))
        ],
    ),
    "unknown role": (
        MODEL + "pools: [{name: p, role: both}]",
        ['f.yaml:2: pools[0].role = "both": must be one of: prefill or decode'],
    ),
    "bad label": (
        MODEL + "pools: [{node_labels: {muxfleet.io/pool: 'a b'}}]",
        [
            'f.yaml:2: pools[0].node_labels.muxfleet.io/pool = "a b": must be a-z, A-Z, 0-9 and ._- between letters '
            "or digits"
        ],
    ),
    "unknown choice": (
        MODEL + "gateway: {proxy: nginx}",
        ['f.yaml:2: gateway.proxy = "nginx": must be one of: auto, haproxy or python'],
    ),
    "bad size": (
        MODEL + "pools: [{kv_memory: 12 parsecs}]",
        ["f.yaml:2: pools[0].kv_memory = \"12 parsecs\": unknown unit 'parsecs'; write a size such as 256MiB"],
    ),
    "section without content": (
        MODEL + "engine:\n",
        ["f.yaml:2: engine: must be a mapping of keys to values"],
    ),
    "bad id": (
        "models: [{id: a b, source: x}]",
        ['f.yaml:1: models[0].id = "a b": must be letters, digits and ._:-/ that begin with a letter or digit'],
    ),
    "sglang on ranks of cores": (
        MODEL + "pools: [{backend: sglang, mesh_gpus: 2, cores: 3}]",
        [
            "f.yaml:2: pools[0].mesh_gpus = 2: backend sglang divides no model on cpu; set 1, or backend: native",
            "f.yaml:2: pools[0].cores = 3: each of mesh_gpus (2) ranks has as many; set a multiple of it",
        ],
    ),
    "mesh does not divide the node": (
        MODEL + "pools: [{device: simulated, gpus_per_node: 6, mesh_gpus: 4}]",
        ["f.yaml:2: pools[0].mesh_gpus = 4: must divide gpus_per_node (6)"],
    ),
    "more than anybody has": (
        MODEL + "pools: [{device: simulated, nodes: {min: 100000000}, gpus_per_node: 1000}]",
        [
            "f.yaml:2: pools[0].gpus_per_node = 1000: must be at most 128",
            "f.yaml:2: pools[0].nodes.min = 100000000: must be at most 10000",
        ],
    ),
    "more than can be planned": (
        MODEL + "pools: [{device: simulated, nodes: {min: 5000}, gpus_per_node: 8}]",
        ["f.yaml:2: pools = 40000: GPUs in all, 20000 at most; split the fleet"],
    ),
    "nothing for a size": (
        MODEL + "engine: {block_bytes: 0}\npools: [{kv_memory: 0GiB}]",
        [
            'f.yaml:3: pools[0].kv_memory = "0GiB": must be greater than 0',
            "f.yaml:2: engine.block_bytes = 0: must be greater than 0",
        ],
    ),
    "bounds the wrong way round": (
        "models: [{id: a, source: x, replicas: {min: 2, max: 1}}]",
        ["f.yaml:1: models[0].replicas.max = 1: smaller than min (2); raise it or lower min"],
    ),
    "nodes the wrong way round": (
        MODEL + "pools: [{nodes: {min: 4, max: 1}}]",
        ["f.yaml:2: pools[0].nodes.max = 1: smaller than min (4); raise it or lower min"],
    ),
    "scaling of a pool that cannot": (
        MODEL + "pools: [{scaling: {shadow: true}}]",
        [
            "f.yaml:2: pools[0].scaling: this pool always has 1 nodes; set nodes.max above nodes.min, or remove it",
        ],
    ),
    "scaling out of bounds": (
        MODEL + "pools: [{nodes: {max: 3}, scaling: {target_attainment: 1.0, schedule: [{nodes: 2, start: '7:30'}]}}]",
        [
            "f.yaml:2: pools[0].scaling.target_attainment = 1.0: must be less than 1",
            'f.yaml:2: pools[0].scaling.schedule[0].start = "7:30": must be a time of day (UTC) as "07:30", in quotes',
        ],
    ),
    "schedule that cannot be kept": (
        MODEL + "pools: [{nodes: {max: 3}, scaling: {schedule: [{nodes: 4, days: []}]}}]",
        [
            "f.yaml:2: pools[0].scaling.schedule[0].nodes = 4: more than nodes.max (3); lower it or raise nodes.max",
            'f.yaml:2: pools[0].scaling.schedule[0].days = "[]": name a day, or remove it for every day',
        ],
    ),
    "forecast out of bounds": (
        MODEL + "pools: [{nodes: {max: 3}, scaling: {forecast: {season_s: 60, trace: '', trace_start: 6}}}]",
        [
            "f.yaml:2: pools[0].scaling.forecast.season_s = 60: must be at least 240",
            'f.yaml:2: pools[0].scaling.forecast.trace = "": must not be empty',
            "f.yaml:2: pools[0].scaling.forecast.trace_start = 6: must be a string (put it in quotes)",
        ],
    ),
    "two prices of a node": (
        MODEL + "pools: [{nodes: {max: 3}, scaling: {cost_per_hour: 3, "
        "spot: {price_per_hour: 9, lost_every_s: 3600}}}]",
        [
            "f.yaml:2: pools[0].scaling.cost_per_hour = 3.0: "
            "spot.price_per_hour says what a node costs; remove this, or spot",
        ],
    ),
    "spot out of bounds": (
        MODEL + "pools: [{nodes: {max: 3}, scaling: {spot: {price_per_hour: 0, lost_every_s: 1, notice_s: -1}}}]",
        [
            "f.yaml:2: pools[0].scaling.spot.price_per_hour = 0: must be greater than 0",
            "f.yaml:2: pools[0].scaling.spot.lost_every_s = 1: must be at least 60",
            "f.yaml:2: pools[0].scaling.spot.notice_s = -1: must be at least 0",
        ],
    ),
    "cores of GPUs": (
        MODEL + "pools: [{device: simulated, cores: 2}]",
        ["f.yaml:2: pools[0].cores = 2: only for cpu pools; remove it"],
    ),
    "KV fills the device": (
        MODEL + "pools: [{kv_memory: 2GiB, device_memory: 1GiB}]",
        ['f.yaml:2: pools[0].kv_memory = "2.0GiB": leaves no device_memory for weights; lower it'],
    ),
    "KV fills the GPU that is named": (
        MODEL + "pools: [{device: cuda, gpu_type: a40, gpus_per_node: 2, mesh_gpus: 2, kv_memory: 96GiB}]",
        [
            'f.yaml:2: pools[0].kv_memory = "96.0GiB": leaves nothing of the unit\'s memory for weights '
            "(a40: 96636764160 bytes); lower it"
        ],
    ),
    "alias of itself": ("a: &a [*a]", ["f.yaml:1: a[0]: an alias contains itself; write the value out"]),
    "tag": (
        "name: !!python/name:os.system x",
        [
            "f.yaml:1: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system'"
        ],
    ),
    "key that is a list": ("{name: x, ? [y] : z}", ["f.yaml:1: a key is a list or a mapping; keys are plain words"]),
    "number of 5,000 digits": (
        MODEL + f"gateway: {{port: {'9' * 5000}}}",
        [f"f.yaml:2: not valid YAML: '{'9' * 40}' is no int; correct it, or put text in quotes"],
    ),
    "number beyond what is counted to": (
        MODEL + "engine: {max_running_sequences: 99999999999999999999}",
        [
            "f.yaml:2: not valid YAML: 99999999999999999999 is beyond 9007199254740992, the most that is counted to; "
            "lower it"
        ],
    ),
    "more tokens and sequences than an engine holds": (
        MODEL + "engine: {max_batch_tokens: 9007199254740992, max_running_sequences: 65537}",
        [
            "f.yaml:2: engine.max_batch_tokens = 9007199254740992: must be at most 1048576",
            "f.yaml:2: engine.max_running_sequences = 65537: must be at most 65536",
        ],
    ),
    "more memory than there is": (
        MODEL + "pools: [{name: p, kv_memory: 9999999PiB}]",
        ['f.yaml:2: pools[0].kv_memory = "9999999PiB": must be at most 8PiB'],
    ),
    "tag of another type": (
        "models: [{id: !!int a, source: x}]",
        ["f.yaml:1: not valid YAML: 'a' is no int; correct it, or put text in quotes"],
    ),
    "date for a key": (
        MODEL + "2026-12-05: 1\n",
        [
            "f.yaml:2: 2026-12-05 = 1: unknown key; known here: name, models, pools, engine, placement, gateway, "
            "drain, state"
        ],
    ),
    "bottomless": ("[" * 5000, ["f.yaml: nested too deeply"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_parse_fleet_file__bad_file__names_place_value_and_remedy(case: str) -> None:
    text, expected = BAD_FILES[case]

    with pytest.raises(FleetFileError) as caught:
        parse_fleet_file(text, name="f.yaml", base=Path("/fleet"))

    assert list(caught.value.problems) == expected


def test_parse_fleet_file__minimal_file__fills_defaults() -> None:
    fleet = parse_fleet_file(MODEL, name="f.yaml", base=Path("/fleet"))

    assert fleet.models[0].slo.ttft_s > 0
    assert fleet.pools[0].device == "cpu"
    assert fleet.gateway.replicas == 2


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("./ckpt/a", "/fleet/ckpt/a"),
        ("../a", "/a"),
        ("/models/a", "/models/a"),
        ("org/name", "org/name"),
        ("name", "name"),
    ],
)
def test_parse_fleet_file__source__is_a_folder_only_when_written_as_one(written: str, resolved: str) -> None:
    fleet = parse_fleet_file(f"models: [{{id: a, source: {written}}}]", name="f.yaml", base=Path("/fleet"))

    assert fleet.models[0].source == resolved


def test_parse_fleet_file__source_without_dot_beside_the_file__is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()

    fleet = parse_fleet_file("models: [{id: a, source: ckpt}]", name="f.yaml", base=tmp_path)

    assert fleet.models[0].source == str(tmp_path / "ckpt")


def test_parse_fleet_file__human_sizes__become_bytes() -> None:
    fleet = parse_fleet_file(MODEL + "pools: [{kv_memory: 1.5GiB}]", name="f.yaml", base=Path("/fleet"))

    assert fleet.pools[0].kv_memory == 3 * 2**29


def test_read_fleet_file__relative_source__resolves_beside_the_file_not_the_working_folder(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: a, source: ./ckpt}]")

    assert read_fleet_file(file).models[0].source == str(tmp_path / "ckpt")
    assert read_fleet_file(file, source_root=Path("/models")).models[0].source == "/models/ckpt"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file"),
        (b"\xff\xfe\x00", "not UTF-8 text (byte 0); save it as UTF-8"),
        (b"#" * 2**21, "larger than 1048576 bytes; is this a fleet file?"),
    ],
)
def test_read_fleet_file__unreadable__says_why(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "fleet.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(FleetFileError) as caught:
        read_fleet_file(file)

    assert caught.value.problems == (f"{file}: {problem}",)


def test_read_fleet_file__folder__says_why(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="cannot be read: Is a directory"):
        read_fleet_file(tmp_path)


def test_check_sources__folder_without_config__is_refused(tmp_path: Path) -> None:
    fleet = parse_fleet_file("models: [{id: a, source: ./nothing}]", name="f.yaml", base=tmp_path)

    with pytest.raises(SourceNotFound, match=r"model 'a': no checkpoint at .*nothing"):
        check_sources(fleet)


def test_fleet_json_schema__describes_the_same_files_as_the_parser() -> None:
    validator = jsonschema.Draft202012Validator(fleet_json_schema())

    assert validator.is_valid({"models": [{"id": "a", "source": "x"}], "pools": [{"kv_memory": "1GiB"}]})
    assert not validator.is_valid({"models": [{"id": "a", "source": "x", "surce": "y"}]})
    assert not validator.is_valid({"models": []})


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda f: f.name)
def test_examples__every_fleet_file__is_valid_by_parser_and_schema(file: Path) -> None:
    assert read_fleet_file(file).models
    jsonschema.Draft202012Validator(fleet_json_schema()).validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize("number", ["1e-05", "1E+1", "1.5e1", "2e-1"])
def test_fleet_file__numbers_as_json_writes_them__are_numbers(number: str) -> None:
    text = json.dumps({"models": [{"id": "a", "source": "x", "slo": {"ttft_s": 7}}]}).replace("7", number)

    assert parse_fleet_file(text, name="f.json", base=EXAMPLES).models[0].slo.ttft_s == float(number)


@pytest.mark.parametrize("written", ["12345e6", '"1e-05"', "2026-13-45", "2026-12-05"])
def test_fleet_file__what_only_looks_like_a_number__is_text(written: str) -> None:
    text = f"models: [{{id: a, source: x, revision: {written}}}]"

    assert parse_fleet_file(text, name="f.yaml", base=EXAMPLES).models[0].revision == written.strip('"')


def test_fleet_file__replan_off_without_quotes__is_off_though_yaml_makes_it_false() -> None:
    fleet = parse_fleet_file(MODEL + "placement: {replan: off}\n", name="f.yaml", base=EXAMPLES)

    assert fleet.placement.replan == "off"


def test_parse_fleet_file__source_that_no_file_system_takes__is_an_id_or_a_path_as_written() -> None:
    long, nobody = "x" * 300, "~no-such-user/checkpoint"

    fleet = parse_fleet_file(
        f"models: [{{id: a, source: {long}}}, {{id: b, source: {nobody}}}]", name="f", base=Path("/f")
    )

    assert [m.source for m in fleet.models] == [long, f"/f/{nobody}"]


def test_read_fleet_file__endless_file__is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="larger than"):
        read_fleet_file(Path("/dev/zero"))
