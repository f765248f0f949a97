"""A real Prometheus with the chart's rules, on one gateway's address."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).resolve().parents[2]
RENDERED = ROOT / "tests" / "k8s" / "golden" / "monitoring.yaml"
TOOLS = Path(os.environ.get("MUXFLEET_K8S_TOOLS", ROOT / ".tools"))
JOB = "llm/fleet-muxfleet-gateway"
_START_S = 30.0


def binary() -> str | None:
    """That of scripts/k8s_tools.sh, or one that is installed."""
    ours = TOOLS / "prometheus"
    return str(ours) if ours.exists() else shutil.which("prometheus")


def chart_rules(*, units: int) -> dict[str, Any]:
    """As the chart renders them, for a fleet of so many units. A minute of `for` is a second here; expressions and
    their windows are the chart's.
    """
    documents = yaml.safe_load_all(RENDERED.read_text())
    (rule,) = [d for d in documents if d and d["kind"] == "PrometheusRule"]
    groups: dict[str, Any] = rule["spec"]
    for alert in alerts_of(groups):
        if waits := alert.get("for"):
            (minutes,) = re.fullmatch(r"(\d+)m", waits).groups()
            alert["for"] = f"{minutes}s"
        if alert["alert"] == "MuxfleetUnitDown":  # the one number that the chart counts from the fleet
            alert["expr"], replaced = re.subn(r"(<|>=) 1$", rf"\1 {units}", alert["expr"].strip(), flags=re.MULTILINE)
            assert replaced == 2, alert["expr"]
    return groups


def alerts_of(groups: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in groups["groups"] for rule in group["rules"] if "alert" in rule]


class Prometheus:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def firing(self) -> set[str]:
        alerts = self._answer("/api/v1/alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def has_samples(self) -> bool:
        return bool(self.query(f'up{{job="{JOB}"}} == 1'))

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self._answer("/api/v1/query", query=expression)["result"])

    def figures(self) -> str:
        """What alerts of load are made of, for whoever finds out why one does not fire."""
        names = "requests_total|requests_shed_total|kv_blocks|num_requests_waiting|generations_queued|ledger_blocks"
        names += "|neighbour_slowdown_seconds_total|answers_total|answers_slo_met_total|inter_token_latency_seconds_sum"
        found = self.query(f'{{__name__=~"muxfleet_({names})", job="{JOB}"}} > 0')
        return "\n".join(f"{series['metric']} {series['value'][1]}" for series in found)

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def _answer(self, path: str, **parameters: str) -> dict[str, Any]:
        return dict(self._http.get(path, params=parameters).raise_for_status().json()["data"])


@contextmanager
def prometheus(program: str, folder: Path, *, port: int, gateway: str, units: int) -> Iterator[Prometheus]:
    """`gateway` is host:port."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(chart_rules(units=units)))
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    scrapes = [{"job_name": JOB, "static_configs": [{"targets": [gateway]}]}]
    config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": scrapes}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        until_s = time.monotonic() + _START_S
        while not server.is_ready():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until_s, (folder / "log").read_text()
            time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait(10)
