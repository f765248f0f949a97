"""`pytest -m prometheus` runs this folder: minutes, and it needs Prometheus."""

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / name) for name in ("e2e", "chaos")]
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from prometheus_server import binary


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "prometheus" in config.getoption("markexpr")
    reason = "minutes long; run `pytest -m prometheus`"
    if asked and binary() is None:
        asked, reason = False, "needs Prometheus: scripts/k8s_tools.sh .tools, or apt install prometheus"
    for item in items:
        if item.get_closest_marker("prometheus") and not asked:
            item.add_marker(pytest.mark.skip(reason=reason))
