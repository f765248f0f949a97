import io
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from deploy.cli import main
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import read_fleet_file
from deploy.fleet_file.what_if import changed_fleet
from deploy.planning.fleet_planning import node_pools, units_of_fleet
from placement.launch_limits import LaunchLimits
from placement.solvers.registry import SOLVERS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated-8gpu.yaml"


@dataclass(frozen=True)
class Planned:
    file: Path
    out: str


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """The example as it is, planned once: tests read the plan or go on from it."""
    file = tmp_path_factory.mktemp("planned") / "plan.json"
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        main(["plan", str(EXAMPLE), "--json", str(file)])
    assert not ended.value.code
    return Planned(file, out.getvalue())


def test_plan__search__writes_what_it_shows(run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"

    code, out, _ = run("plan", EXAMPLE, "--solver", "search", "--json", file)

    plan = json.loads(file.read_text())
    assert code == 0
    assert "14.00 of 14.00 requests/s within SLO" in out
    assert plan["total"]["bound_per_s"] >= plan["total"]["served_per_s"] > 13.99
    assert sum(len(u["models"]) for u in plan["units"]) == sum(m["replicas"] for m in plan["models"].values())


def test_plan__engine_of_large_launches__keeps_room_for_them() -> None:
    fleet = read_fleet_file(EXAMPLE)
    engine = fleet.engine.model_copy(update={"max_batch_tokens": 8192, "max_running_sequences": 256})
    fleet = fleet.model_copy(update={"engine": engine})

    limits = {u.launch_limits for u in (*units_of_fleet(fleet), *(p.unit(0, 0, 1) for p in node_pools(fleet)))}

    assert limits == {LaunchLimits(batch_tokens=8192, sequences=256)}


def test_plan__current_and_more_load__shows_steps_and_what_they_cost(run, tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    run("plan", EXAMPLE, "--solver", "search", "--what-if", "replicas.llama-8b=1", "--json", before)

    code, out, _ = run(
        "plan", EXAMPLE, "--solver", "search", "--current", before, "--what-if", "rate.llama-8b=x4", "--json", after
    )

    plan = json.loads(after.read_text())
    assert code == 0
    assert "load, then shift traffic" in out
    assert {s["model"] for s in plan["steps"] if s["step"] == "LoadModel"} == {"llama-8b"}
    assert plan["move_cost"]["load_bytes"] > 15e9
    assert plan["move_cost"]["interrupted"] == []


def test_plan__what_if__says_what_changed_and_what_it_was_before(run) -> None:
    code, out, _ = run("plan", EXAMPLE, "--what-if", "nodes.small=+1,rate.llama-8b=x2")

    lines = out.splitlines()
    assert code == 0
    assert "what if: nodes.small 1 -> 2, rate.llama-8b 8 -> 16" in lines
    assert any(line.startswith("serves 22.00 of 22.00") and "of 12 GPUs; least headroom x" in line for line in lines)
    assert any(line.startswith("without: serves 14.00 of 14.00") and "of 8 GPUs" in line for line in lines)


def test_plan__more_units_than_the_demand_needs__names_those_that_would_do(planned: Planned) -> None:
    said = next(line for line in planned.out.splitlines() if "would do for this demand" in line)
    room = float(said.split("headroom x")[1].split(":")[0])
    assert said.startswith("4 GPUs")
    assert said.endswith(": 1 of large")
    assert room >= 1.25


def test_plan__more_load_than_any_plan_serves__says_how_much_and_no_advice_to_shrink(run) -> None:
    _, out, _ = run("plan", EXAMPLE, "--what-if", "rate=x40")

    assert "no plan serves more than" in out
    assert "worst: " in out
    assert "would do" not in out


def test_plan__nothing_is_served_within_slo__no_advice_to_shrink(run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        f"models: [{{id: a, source: {EXAMPLE.parent}/models/llama-3.1-8b, slo: {{ttft_s: 1e-5, tbt_s: 1e-5}}}}]\n"
        "pools: [{name: p, device: simulated, gpu_type: H100, gpus_per_node: 4, kv_memory: 20GiB}]\n"
    )

    _, out, _ = run("plan", file)

    assert "(0.0%)" in out
    assert "would do" not in out


def test_plan__mean_prompt_beyond_the_context__says_that_they_are_refused(
    run, planned: Planned, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    text = EXAMPLE.read_text().replace("./models", str(EXAMPLE.parent / "models"))
    fleet = yaml.safe_load(text)
    fleet["models"][0]["max_model_len"] = 4096
    fleet["models"][0].setdefault("demand", {})["prompt_tokens"] = 5000
    file.write_text(yaml.safe_dump(fleet))

    _, out, _ = run("plan", file)

    warned = [line for line in out.splitlines() if "would be refused" in line]
    assert len(warned) == 1
    assert warned[0].startswith(f"{fleet['models'][0]['id']}: a mean prompt of 5000 tokens")
    assert "max_model_len 4096" in warned[0]
    assert "would be refused" not in planned.out


def test_plan__own_plan_as_current__has_nothing_to_do(run, planned: Planned) -> None:
    _, out, _ = run("plan", EXAMPLE, "--solver", "search", "--current", planned.file)

    assert "nothing to do" in out


@pytest.mark.parametrize(("key", "strange"), [("unit", "elsewhere"), ("models", "stranger")])
def test_plan__current_is_of_another_fleet__is_one_line(
    run, planned: Planned, tmp_path: Path, key: str, strange: str
) -> None:
    file = tmp_path / "plan.json"
    written = json.loads(planned.file.read_text())
    for unit in written["units"]:
        unit[key] = strange if key == "unit" else {strange: 1}
    file.write_text(json.dumps(written))

    code, _, err = run("plan", EXAMPLE, "--current", file)

    assert code == 2
    assert f"this one has no '{strange}'; give a plan of this fleet" in err
    assert err.count("\n") == 1


def test_plan__choose_meshes__uses_no_more_gpus(run, planned: Planned, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.json"

    code, _, _ = run("plan", EXAMPLE, "--solver", "search", "--choose-meshes", "--json", chosen)

    totals = [json.loads(f.read_text())["total"] for f in (planned.file, chosen)]
    assert code == 0
    assert totals[1]["gpus_used"] <= totals[0]["gpus_used"]
    assert totals[1]["served_per_s"] == pytest.approx(totals[0]["served_per_s"])


def test_plan__plot__draws_the_fleet(run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "fleet.svg"

    code, out, _ = run("plan", EXAMPLE, "--solver", "search", "--plot", file)

    assert code == 0
    assert f"wrote {file}" in out
    assert "llama-70b" in file.read_text() or file.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--solver", "magic"],
            f"--solver magic: unknown solver; known: {', '.join(SOLVERS)}",
        ),
        (["--solver", "memory_greedy", "--choose-meshes"], "--solver memory_greedy: it does not choose mesh sizes"),
        (["--what-if", "nodes.tiny=+1"], "--what-if nodes.tiny=+1: the fleet has no pool 'tiny'"),
        (["--what-if", "rate=fast"], "--what-if rate=fast: write nodes"),
        (["--what-if", "nodes=99999999"], "GPUs in all, 20000 at most"),
        (["--what-if", "rate=x1e308,rate=x1e308"], "--what-if rate=x1e308: gives no finite number"),
        (["--what-if", "rate.llama-8b=-9"], "would have -1 requests/s"),
        (["--what-if", "nodes=x0"], "would have 0 nodes"),
        (["--current", "missing.json"], "--current missing.json: No such file"),
        (["--plot", "fleet.txt"], "--plot fleet.txt: name a .png"),
    ],
)
def test_plan__unusable_option__is_one_line(run, arguments: list[str], said: str) -> None:
    code, _, err = run("plan", EXAMPLE, *arguments)

    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option"), [(("plan", EXAMPLE), "--current"), (("explain", EXAMPLE, "m"), "--plan")]
)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"units": [{"unit": "a"}]}', "units[0].models: required, but missing"),
        ("[]", "the file: must be a mapping of keys to values"),
        ('{"units', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_plan_file__is_another_file__names_option_and_what_is_wrong(
    run, tmp_path: Path, command: tuple[str, ...], option: str, text: str, reason: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)

    code, _, err = run(*command, option, file)

    assert code == 2
    assert err == f"muxfleet: {option} {file}: {reason}; give what muxfleet plan --json wrote\n"


def test_explain__plan_of_another_fleet__is_refused(run, planned: Planned) -> None:
    code, _, err = run("explain", EXAMPLE.with_name("simulated-32gpu.yaml"), "qwen-8b-a", "--plan", planned.file)

    assert code == 2
    assert f"--plan {planned.file}: the fleet has no 'llama-70b'; give a plan of this fleet" in err


def test_what_if__names_with_dots__are_whole(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE.parent / "models", tmp_path / "models")
    file = tmp_path / "fleet.yaml"
    file.write_text(EXAMPLE.read_text().replace("id: llama-8b", "id: llama-3.1-8b"))

    fleet = changed_fleet(read_fleet_file(file), "rate.llama-3.1-8b=x2, nodes.small=+1")

    assert {m.id: m.demand.rate_per_s for m in fleet.models}["llama-3.1-8b"] == 16
    assert {p.name: p.nodes.min for p in fleet.pools} == {"large": 1, "small": 2}


@pytest.mark.parametrize("changes", ["", "nodes", "nodes=", "gpus=2", "rate=nan", "rate=,", "replicas.llama-8b=0"])
def test_what_if__malformed__is_refused(changes: str) -> None:
    with pytest.raises(OptionNotUsable):
        changed_fleet(read_fleet_file(EXAMPLE), changes)


def test_plan__attainment__finds_the_cheapest_nodes_and_plans_for_them(run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"

    code, out, _ = run("plan", EXAMPLE, "--attainment", "0.99", "--price", "large=16,small=40", "--json", file)

    plan = json.loads(file.read_text())
    size, pools = plan["size"], {unit["pool"] for unit in plan["units"]}
    assert code == 0
    assert size["is_enough"]
    assert size["attainment"] >= 0.99
    assert size["cost_per_hour"] == 16 * size["nodes"]["large"] + 40 * size["nodes"]["small"] < 16 + 40
    assert pools == {name for name, count in size["nodes"].items() if count}
    assert "cheapest nodes: " in out


def test_plan__budget_that_does_not_reach__exits_with_1_and_says_what_helps(run) -> None:
    code, out, _ = run("plan", EXAMPLE, "--attainment", "0.99", "--price", "large=3,small=2", "--budget", "2")

    assert code == 1
    assert "no number of nodes is enough" in out


@pytest.mark.parametrize("models", [["qwen-8b"], ["llama-70b", "llama-8b", "qwen-8b"]])
def test_plan__no_pool_meets_the_slo_of_some__exits_with_1_and_names_them(
    run, tmp_path: Path, models: list[str]
) -> None:
    fleet = yaml.safe_load(EXAMPLE.read_text())
    for model in fleet["models"]:
        model["source"] = str(EXAMPLE.parent / model["source"])
        if model["id"] in models:
            model["slo"] = {"ttft_s": 0.0001, "tbt_s": 0.0001}
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet))

    code, out, _ = run("plan", file, "--attainment", "0.99", "--price", "large=16,small=40")

    assert code == 1
    assert f"No pool meets the SLO of {', '.join(sorted(models))} at any size: loosen" in out


def test_plan__attainment_and_what_if__tells_what_was_asked_not_what_was_found(run) -> None:
    code, out, _ = run("plan", EXAMPLE, "--attainment", "0.9", "--what-if", "rate.qwen-8b=x2")

    assert code == 0
    assert "of large, 0 of small" in out, "a pool goes"
    assert "what if: rate.qwen-8b 4 -> 8\n" in out


@pytest.mark.parametrize(("budget_s", "is_said"), [(0, True), (1000, False)])
def test_plan__search_cut_short__says_that_a_better_plan_may_be_left(run, budget_s: float, is_said: bool) -> None:
    code, out, _ = run("plan", EXAMPLE, "--choose-meshes", "--time-budget", budget_s)

    assert code == 0
    assert ("the search was cut short" in out) == is_said


def test_plan__time_is_up_while_sizing__does_not_call_it_the_cheapest(run) -> None:
    code, out, _ = run("plan", EXAMPLE, "--attainment", "0.9", "--time-budget", "0")

    assert code == 0
    assert "there may be cheaper ones: 1 of large, 1 of small" in out


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--budget", "5"), "--attainment 0.99"),
        (("--price", "large=1"), "--attainment 0.99"),
        (("--most-nodes", "3"), "--attainment 0.99"),
        (("--attainment", "0.99", "--budget", "3"), "pays for no node; the cheapest, of pool large, is 4 per hour"),
        (("--attainment", "0.99", "--price", "large=1,large=2"), "pool large has a price already"),
        (("--attainment", "0.99", "--choose-meshes"), "drop --choose-meshes"),
        (("--attainment", "0.99", "--price", "big=1"), "pools: large, small"),
        (("--attainment", "0.99", "--price", "large=0"), "pools: large, small"),
        (("--attainment", "0.99", "--price", "large"), "pools: large, small"),
    ],
)
def test_plan__options_of_a_size_that_do_not_fit__are_told(run, options: tuple[str, ...], remedy: str) -> None:
    code, _, err = run("plan", EXAMPLE, *options)

    assert code != 0
    assert remedy in " ".join(err.split())


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    """A fleet file with a pool for prompts and one for answers."""
    fleet = yaml.safe_load((EXAMPLE.parent / "disaggregated.yaml").read_text())
    fleet["models"][0]["source"] = str(EXAMPLE.parent / "models" / "qwen2.5-1.5b")
    for pool in fleet["pools"]:
        pool["device_memory"] = "8GiB"
    file = tmp_path / "roles.yaml"
    file.write_text(yaml.safe_dump(fleet))
    return file


def test_plan__pools_of_roles__has_every_model_on_both(run, roles: Path, tmp_path: Path) -> None:
    code, out, err = run("plan", roles, "--json", tmp_path / "plan.json")

    assert code == 0, out + err
    units = json.loads((tmp_path / "plan.json").read_text())["units"]
    assert {u["unit"]: list(u["models"]) for u in units} == {"prompts/0": ["demo-llama"], "answers/0": ["demo-llama"]}


def test_plan__pools_of_roles_and_meshes_to_choose__is_refused_with_a_remedy(run, roles: Path) -> None:
    code, _, err = run("plan", roles, "--choose-meshes")

    assert code == 2
    assert "--choose-meshes" in err
    assert "remove pools[].role" in err


def test_simulate__pools_of_roles__is_refused_with_what_to_do_instead(run, roles: Path) -> None:
    code, _, err = run("simulate", roles)

    assert code == 2
    assert "pools[0].role = prefill: units with roles are not simulated" in err
    assert "--baseline 1P1D" in err
