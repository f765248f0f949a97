"""Rules and dashboards: promtool, and every metric in them against a gateway that has served requests."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from helm_runner import CHART, CI_VALUES, ROOT, TOOLS, Helm, minimal_objects, objects_of, of_kind
from metrics_probe import expositions
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

pytestmark = pytest.mark.k8s

DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
CLUSTER = CHART / "files" / "dashboards" / "cluster.json"
METRIC = re.compile(r"\bmuxfleet_[a-z0-9_]+")
RAY_METRIC = re.compile(r"\bray_[a-z0-9_]+")
RAYS_DASHBOARDS = "dashboard/modules/metrics/dashboards/*_panels.py"
DCGM_METRIC = re.compile(r"\bDCGM_FI_\w+")
RECORDED = re.compile(r"\bmuxfleet:[a-z0-9_:]+")
SERIES = re.compile(r"(\w+)\{(.*)\}")
LABEL = re.compile(r'(\w+)="([^"]*)"')
GATEWAY_JOB = "llm/fleet-muxfleet-gateway"
SITUATIONS = sorted(Path(__file__).parent.glob("alerts*_test.yaml"))
PROMTOOL = TOOLS / "promtool"


@pytest.fixture
def groups(helm4: Helm, chart: Path) -> dict[str, Any]:
    (values,) = [file for file in CI_VALUES if file.stem.startswith("monitoring")]
    outcome = helm4.template(chart, values)
    (rule,) = of_kind(objects_of(outcome.output), "PrometheusRule")
    return dict(rule["spec"])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Of a gateway's /metrics: before and after its first request, and when units have just joined."""
    return expositions(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def exposed(texts: tuple[str, str, str]) -> dict[str, set[str]]:
    """Names of the samples of a gateway's /metrics, with their labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(texts[1]):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _counters(text: str) -> list[Sample]:
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples if sample.name.endswith("_total")]


def rules(groups: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in groups["groups"]:
        yield from group["rules"]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if not PROMTOOL.exists():
        pytest.fail("promtool is not here; scripts/k8s_tools.sh .tools fetches it")
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=240, check=False)


def test_rules__promtool__accepts_them(groups: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(groups))

    checked = promtool("check", "rules", file)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(list(rules(groups)))} rules found" in checked.stdout


@pytest.mark.parametrize("file", SITUATIONS, ids=lambda path: path.stem)
def test_alerts__situations__fire_as_they_should(file: Path, groups: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    (tmp_path / file.name).write_text(file.read_text())

    tested = promtool("test", "rules", tmp_path / file.name)

    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("objective", [0.5, 0.9, 0.99])
def test_slo_alerts__nearly_all_requests_miss__fire_whatever_the_objective(
    helm4: Helm, chart: Path, objective: float, tmp_path: Path
) -> None:
    rendered = minimal_objects(helm4, chart, {"monitoring": {"rules": {"enabled": True, "sloObjective": objective}}})
    (rule,) = of_kind(rendered, "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    where = f'{{job="{GATEWAY_JOB}",model="m",gateway="g"}}'
    series = {"answers": "0+100x480", "requests_in_time": "0+1x480"}
    burning = [{"labels": f'{{alertname="MuxfleetSloBurn{name}"}}', "value": 1} for name in ("Fast", "Slow")]
    situation = {
        "interval": "1m",
        "input_series": [{"series": f"muxfleet_{n}_total{where}", "values": v} for n, v in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "450m",
                "exp_samples": [*burning, {"labels": '{alertname="MuxfleetGatewayDown"}', "value": 1}],
            }
        ],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": [situation]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))

    tested = promtool("test", "rules", tmp_path / "test.yaml")

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_alerts__counters_of_the_situations__start_as_a_fresh_gateway_exports_them(
    texts: tuple[str, str, str],
) -> None:
    """A counter that is born at 1 has no `increase()`: a case that feeds one from 0 would prove nothing."""
    fresh = [*_counters(texts[0]), *(c for c in _counters(texts[2]) if "unit" in c.labels)]
    read = [yaml.load(file.read_text(), yaml.BaseLoader) for file in SITUATIONS]  # 0x480 is no number here
    fed = [
        s
        for cases in read
        for situation in cases["tests"]
        for s in situation["input_series"]
        if "_total{" in s["series"]
    ]

    assert any("continuations" in s["series"] for s in fed)
    for series in fed:
        name, labels = SERIES.fullmatch(series["series"]).groups()
        # A second gateway is as the first one.
        wanted = set(LABEL.findall(labels.replace('gateway="h"', 'gateway="g"'))) - {("job", GATEWAY_JOB)}
        found = [s.value for s in fresh if s.name == name and wanted <= set(s.labels.items())]
        assert found, f"no fresh gateway exports {series['series']}"
        assert set(found) == {0.0}
        assert re.match(r"(_x\d+ )?0[+x]", series["values"]), series


def test_alerts__each__has_a_section_in_the_runbook_and_a_case(groups: dict[str, Any]) -> None:
    alerts = {rule["alert"] for rule in rules(groups) if "alert" in rule}
    sections = set(re.findall(r"^## (Muxfleet\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE))
    cases = set(re.findall(r"alertname: (\w+)", "".join(file.read_text() for file in SITUATIONS)))

    assert alerts == sections
    assert alerts == cases


def test_rules__metrics_in_them__are_in_a_gateways_answer(groups: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    used = {name for rule in rules(groups) for name in METRIC.findall(rule["expr"])}
    recorded = {name for rule in rules(groups) for name in RECORDED.findall(rule["expr"])}

    assert used
    assert not used - set(exposed)
    assert recorded == {rule["record"] for rule in rules(groups) if "record" in rule}


def test_dashboards__figures_that_may_be_negative__are_not_cut_off_at_zero() -> None:
    """An axis with a minimum of 0 shows nothing of a missed target."""
    rows = re.findall(
        r"^\| `(muxfleet_\w+)` .*(?:negative|-1).*$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    panels = [panel for file in DASHBOARDS for panel in json.loads(file.read_text())["panels"] if "targets" in panel]
    of_rows = [p for p in panels if any(name in target["expr"] for target in p["targets"] for name in rows)]

    assert set(rows) == {"muxfleet_decode_headroom_ratio", "muxfleet_telemetry_age_seconds"}
    assert len(of_rows) == 2
    assert [p["title"] for p in of_rows if "min" in p["fieldConfig"]["defaults"]] == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard__json_model__is_sound(file: Path) -> None:
    model = json.loads(file.read_text())
    panels = [panel for panel in model["panels"] if panel["type"] != "row"]
    variables = {variable["name"] for variable in model["templating"]["list"]}

    assert {"uid", "title", "schemaVersion", "time", "panels"} <= set(model)
    assert len({panel["id"] for panel in model["panels"]}) == len(model["panels"])
    assert len(panels) >= 9
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        named = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
        assert named <= variables | {"__rate_interval"}
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in model["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard__queries__parse_and_name_what_a_gateway_exposes(
    file: Path, exposed: dict[str, set[str]], tmp_path: Path
) -> None:
    targets = [t for panel in json.loads(file.read_text())["panels"] for t in panel.get("targets", [])]
    queries = [re.sub(r"\$\w+", ".*", t["expr"].replace("$__rate_interval", "5m")) for t in targets]
    used = {name for query in queries for name in METRIC.findall(query)}
    recording = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recording}]}))

    checked = promtool("check", "rules", tmp_path / "queries.yaml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    missing = used - set(exposed)
    assert not missing
    for query in queries:
        for name, selector in re.findall(r"(muxfleet_[a-z0-9_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)=", selector)) - {"job"}
            assert labels <= exposed[name], f"{name} has no {labels - exposed[name]}"


def test_dashboard__of_the_cluster__names_what_ray_declares() -> None:
    folder = Path(ray.__file__).parent
    files = [*folder.glob("serve/_private/*.py"), folder / "dashboard/modules/reporter/reporter_agent.py"]
    declared = {name for file in files for name in re.findall(r'"((?:serve|node|component)_\w+)"', file.read_text())}
    shown = {name for file in folder.glob(RAYS_DASHBOARDS) for name in RAY_METRIC.findall(file.read_text())}
    used = set(RAY_METRIC.findall(CLUSTER.read_text())) - {"ray_io_cluster"}  # a label that the PodMonitor gives
    bare = {name: re.sub("_(total|bucket|count|sum)$", "", name.removeprefix("ray_")) for name in used}
    full = {name: name.removeprefix("ray_") for name in used}

    assert used
    assert not {n for n in used if n not in shown and bare[n] not in declared and full[n] not in declared}


def test_dashboard__of_the_cluster__names_what_the_page_asks_of_dcgm() -> None:
    """The page names counters that NVIDIA's exporter has by default."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    used = set(DCGM_METRIC.findall(CLUSTER.read_text()))

    assert used
    assert used == set(DCGM_METRIC.findall(page))


def test_metrics__exported_ones__are_on_a_dashboard_or_documented_as_on_none(texts: tuple[str, str, str]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    (on_none,) = re.findall(r"^On no dashboard: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    shown = {name for file in DASHBOARDS for name in METRIC.findall(file.read_text())}
    left_out = set(re.findall(r"`([\w:]+)`", on_none))
    missing = set()
    for family in text_string_to_metric_families(texts[1]):
        names = {family.name + suffix for suffix in ("", "_total", "_bucket", "_count", "_sum")}
        assert not names & shown & left_out
        if not names & (shown | left_out):
            missing.add(family.name)

    assert not missing


def test_metrics__page_and_gateway__name_the_same() -> None:
    """docs/metrics.md is what people write their own rules from."""
    page = ROOT / "docs" / "metrics.md"
    if not page.exists():
        pytest.skip("docs/metrics.md is not written yet")
    named = set(METRIC.findall(page.read_text()))
    assert {name for file in DASHBOARDS for name in METRIC.findall(file.read_text())} <= {
        n + suffix for n in named for suffix in ("", "_bucket", "_total", "_count", "_sum")
    }


def test_fairness_row__some_keys_and_models_get_more__indexes_are_jains(tmp_path: Path) -> None:
    tokens_per_s, in_time = {"a": 10, "b": 10, "idle": 0, "d": 20}, {"m": 60, "late": 0}
    series = {
        **{f'muxfleet_key_tokens_total{{job="g", key="{key}"}}': 60 * rate for key, rate in tokens_per_s.items()},
        **{f'muxfleet_requests_in_time_total{{job="g", model="{model}"}}': met for model, met in in_time.items()},
        **{f'muxfleet_answers_total{{job="g", model="{model}"}}': 60 for model in in_time},
        **{f'muxfleet_{name}_total{{job="g", model="unused"}}': 0 for name in ("requests_in_time", "answers")},
    }
    asked_keys = 3
    expected = {
        "Share of tokens by API key": {'{key="a"}': 0.25, '{key="b"}': 0.25, '{key="d"}': 0.5},
        "Jain's index of API keys": {"{}": 40**2 / (asked_keys * (10**2 + 10**2 + 20**2))},
        "Jain's index of models": {"{}": 1**2 / (len(in_time) * 1**2)},
    }
    panels = {p["title"]: p for p in json.loads((CHART / "files" / "dashboards" / "fleet.json").read_text())["panels"]}
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"0+{step}x10"} for name, step in series.items()],
        "promql_expr_test": [
            {
                "expr": re.sub(r"\$\w+", ".*", panels[title]["targets"][0]["expr"].replace("$__rate_interval", "5m")),
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for title, samples in expected.items()
        ],
    }
    (tmp_path / "fairness.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))

    tested = promtool("test", "rules", tmp_path / "fairness.yaml")

    assert tested.returncode == 0, tested.stdout + tested.stderr
