import io
import json
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.fleet_file.settings import read_fleet_file

SHARED = Path(__file__).parents[2].parent / "shared"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def demo_file(run: Run, tmp_path: Path) -> Path:
    assert run("demo", "--write", tmp_path)[0] == 0
    return tmp_path / "demo.yaml"


def test_help__asked_for__is_printed_and_ends_with_0(run: Run) -> None:
    code, out, _ = run("plan", "--help")

    assert code == 0
    assert "Usage: muxfleet plan" in out


@pytest.mark.parametrize("verb", ["up", "plan", "render"])
def test_fleet_file_error__any_verb__is_one_line_and_code_2(run: Run, tmp_path: Path, verb: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: a, surce: x}]")

    code, out, err = run(verb, file)

    assert code == 2
    assert out == ""
    assert err == (
        f"muxfleet: {file}:1: models[0].source: required, but missing\n"
        f'{file}:1: models[0].surce = "x": unknown key; did you mean source?\n'
    )


@pytest.mark.parametrize("verb", ["up", "plan"])
def test_missing_checkpoint__before_anything_starts__is_one_line_and_code_2(
    run: Run, tmp_path: Path, verb: str
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: a, source: ./nowhere}]")

    code, _, err = run(verb, file)

    assert code == 2
    assert err == (
        f"muxfleet: model 'a': no checkpoint at {tmp_path}/nowhere: "
        "it must be a file that ends in .gguf, or a folder in Hugging Face layout with a config.json\n"
    )


def test_demo__write__makes_a_fleet_that_can_be_planned(run: Run, demo_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "plan.json"

    code, out, _ = run("plan", demo_file, "--json", out_file)

    assert code == 0
    planned = json.loads(out_file.read_text())
    assert set(planned["units"][0]["models"]) == {m.id for m in read_fleet_file(demo_file).models}
    assert sum(planned["units"][0]["models"].values()) == planned["units"][0]["total_blocks"]
    assert "demo-qwen3" in out


def test_plan__model_too_large__says_so_and_exits_1(run: Run, demo_file: Path) -> None:
    small = demo_file.with_name("small.yaml")
    small.write_text(demo_file.read_text().replace("kv_memory: 256MiB", "kv_memory: 64MiB\n    device_memory: 65MiB"))

    code, out, _ = run("plan", small)

    assert code == 1
    assert "not placed: demo-qwen3" in out


def test_plan__unsupported_architecture__is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    file = tmp_path / "fleet.yaml"
    file.write_text("models: [{id: a, source: ./ckpt}]")

    code, _, err = run("plan", file)

    assert code == 2
    assert err.startswith("muxfleet: config.json: architectures='MambaForCausalLM' is not supported: ")
    assert err.count("\n") == 1


def test_demo__write__folder_looks_like_markup__is_shown_as_it_is(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "[a]:cat:"

    assert f"wrote {folder / 'demo.yaml'}\n" in run("demo", "--write", folder)[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output__terminal_cannot_show_a_character__stands_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """As in a terminal of another encoding than UTF-8, or with PYTHONIOENCODING."""
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding=encoding))

    with pytest.raises(SystemExit) as ended:
        main(["demo", "--write", str(tmp_path / "\u6a21")])

    assert ended.value.code == 0
    assert f"wrote {tmp_path}/?/demo.yaml" in shown.getvalue().decode(encoding)


def test_demo__write__no_place_to_go__is_one_line_and_code_2(run: Run) -> None:
    code, _, err = run("demo", "--write", "/dev/null/demo")

    assert (code, err) == (2, "muxfleet: /dev/null/demo: cannot be written: Not a directory\n")


def test_render__fleet__prints_yaml_with_absolute_sources(run: Run, demo_file: Path) -> None:
    code, out, _ = run("render", demo_file)

    assert code == 0
    assert f"source: {demo_file.parent}/checkpoints/demo-llama" in out


def test_schema__printed__is_json(run: Run) -> None:
    code, out, _ = run("schema")

    assert code == 0
    assert json.loads(out)["title"] == "muxfleet fleet file"


def test_up__port_asked_for_is_taken__says_so(run: Run, demo_file: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        code, _, err = run("up", demo_file, "--port", str(port))

    assert code == 1
    assert err == f"muxfleet: 127.0.0.1:{port} is in use by another process; choose another with --port\n"


def test_up__stale_ray_address__is_one_line_and_nothing_is_started(
    run: Run, demo_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")

    code, _, err = run("up", demo_file)

    assert code == 1
    assert err == (
        "muxfleet: no Ray cluster answers at 127.0.0.1:9: Connection refused; "
        "look whether its head runs there; RAY_ADDRESS is the host:port of a cluster to join, "
        "and without it the fleets of this machine are meant\n"
    )


def test_up__cache_folder_not_writable__is_one_line_and_nothing_is_started(
    run: Run, demo_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")

    code, out, err = run("up", demo_file)

    assert (code, err.count("\n")) == (1, 1)
    assert "/dev/null/muxfleet/fleets cannot be written: Not a directory" in err
    assert "starting Ray" not in out


@pytest.mark.parametrize("verb", ["status", "bench"])
def test_no_fleet__there__is_one_line(run: Run, tmp_path: Path, verb: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [0]}\n')
    extra = ["--trace", trace] if verb == "bench" else []

    code, _, err = run(verb, "http://127.0.0.1:9", *extra)

    assert code == 1
    assert err.startswith("muxfleet: no fleet answers at http://127.0.0.1:9: ")
    assert err.count("\n") == 1


def test_traces_stats__missing_file__is_one_line_and_code_2(run: Run, tmp_path: Path) -> None:
    code, _, err = run("traces", "stats", tmp_path / "none.parquet")

    assert code == 2
    assert err.startswith("muxfleet: ")
    assert err.count("\n") == 1


def test_traces_stats__json__holds_the_figures(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 10 * i + 1, "output_length": 5, "hash_ids": [0]} for i in range(5)]
    trace.write_text("\n".join(json.dumps(row) for row in rows))

    code, out, _ = run("traces", "stats", trace, "--json", tmp_path / "stats.json")

    assert code == 0
    assert json.loads((tmp_path / "stats.json").read_text())["total"]["requests"] == 5
    assert "requests" in out


@pytest.mark.parametrize(
    ("gaps_ms", "bursts"),
    [
        ([0, 1], "all: all within 10 s, or fewer than 10 requests, so that the rate is a burst's"),
        (range(0, 9_000, 10), "all: all within 10 s"),
        ([0], None),
        (range(0, 60_000, 1_000), None),
    ],
    ids=["two requests", "a burst", "one request", "a minute"],
)
def test_traces_stats__few_requests_or_all_at_once__says_that_the_rate_is_none_of_a_load(
    run: Run, tmp_path: Path, gaps_ms: Sequence[int], bursts: str | None
) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": t, "input_length": 10, "output_length": 5, "hash_ids": [0]} for t in gaps_ms]
    trace.write_text("\n".join(json.dumps(row) for row in rows))

    code, out, _ = run("traces", "stats", trace)

    assert code == 0
    told = [line for line in out.splitlines() if "a burst's and not a load's" in line]
    assert len(told) == (0 if bursts is None else 1)
    assert all(line.startswith(bursts or "") for line in told)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("no/plan.json", "there is no folder {folder}/no; make it, or name another"), (".", "Is a directory")],
    ids=str,
)
@pytest.mark.parametrize(
    "command",
    ["plan {fleet} --json", "simulate {fleet} --json", "bench http://127.0.0.1:9 --trace none --out", "demo --json"],
)
def test_output__has_no_place_to_go__is_said_before_the_work(
    run: Run, tmp_path: Path, command: str, place: str, reason: str
) -> None:
    code, out, err = run(*command.format(fleet=tmp_path / "none.yaml").split(), tmp_path / place)

    assert (code, out) == (2, "")
    assert err == f"muxfleet: {tmp_path / place}: cannot be written: {reason.format(folder=tmp_path)}\n"


def test_json__disk_is_full__is_one_line_and_code_2(run: Run, demo_file: Path) -> None:
    code, _, err = run("plan", demo_file, "--json", "/dev/full")

    assert (code, err) == (2, "muxfleet: /dev/full: cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("host", "reason"),
    [("203.0.113.7", "Cannot assign requested address"), ("::", "Address family for hostname not supported")],
)
def test_up__host_that_is_not_this_machines__is_not_told_as_a_port_in_use(
    run: Run, demo_file: Path, monkeypatch: pytest.MonkeyPatch, host: str, reason: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    demo_file.write_text(demo_file.read_text() + f"  host: '{host}'\n")

    code, out, err = run("up", demo_file)

    assert (code, out) == (1, "")
    assert f"{host}:8000 cannot be listened on: {reason}; gateway.host must be" in err


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="../shared with the public traces is not here")
def test_traces_stats__public_trace__prints_its_count(run: Run) -> None:
    code, out, _ = run("traces", "stats", SHARED / "traces" / "apex_lmsys_chat.parquet")

    assert code == 0
    assert "1024" in out


def test_version__asked_for__is_that_of_the_package(run: Run) -> None:
    assert run("--version") == (0, f"muxfleet {version('muxfleet')}\n", "")


@pytest.mark.parametrize(("option", "value"), [("--gateway", "ftp://fleet-svc:8000"), ("--api-server", "http://")])
def test_rollout__no_url__is_refused_at_once(run: Run, option: str, value: str) -> None:
    options = {"--gateway": "http://g:8000", "--api-server": "http://127.0.0.1:9"} | {option: value}

    code, _, err = run("rollout", "s", "--namespace", "llm", *(f"{name}={text}" for name, text in options.items()))

    assert (code, err) == (2, f"muxfleet: {option} {value}: write a URL such as http://127.0.0.1:8000\n")


@pytest.mark.parametrize("verb", ["status", "top", "incident", "trace-decisions", "bench"])
@pytest.mark.parametrize("value", ["ftp://x", "http://", "http://[::", "./x", f"{'x' * 64}:80"])
def test_address__of_no_gateway__is_refused_at_once(run: Run, verb: str, value: str) -> None:
    more = ("--trace", "t.parquet") if verb == "bench" else ()

    assert run(verb, value, *more) == (2, "", f"muxfleet: URL {value}: write a URL such as http://127.0.0.1:8000\n")


def test_address__without_a_scheme__is_taken_as_curl_does(run: Run) -> None:
    code, _, err = run("status", "127.0.0.1:9")

    assert code == 1
    assert err.startswith("muxfleet: no fleet answers at http://127.0.0.1:9: ")


def test_explain__address_without_a_scheme__asks_the_fleet_unless_a_file_has_that_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, unanswered = run("explain", "127.0.0.1:9", "m")
    (tmp_path / "127.0.0.1:9").write_text("models: []")
    _, _, of_file = run("explain", "127.0.0.1:9", "m")

    assert unanswered.startswith("muxfleet: no fleet answers at http://127.0.0.1:9: ")
    assert of_file.startswith("muxfleet: 127.0.0.1:9:1: models = []: ")
