"""Writes the generated files of the chart, of examples/ and of docs/; with --check only says which of them are stale.

Usage: python -m scripts.chart.generate [--check]
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.fleet_file.settings import fleet_json_schema, read_fleet_file
from deploy.serve.render import serve_yaml
from scripts.chart.dashboards.cluster_rows import cluster_dashboard
from scripts.chart.dashboards.fleet_rows import fleet_dashboard
from scripts.chart.dashboards.grafana_json import dashboard_json
from scripts.chart.dashboards.unit_rows import units_dashboard
from scripts.chart.live_schema import live_json_schema
from scripts.chart.register_tables import documents, with_table
from scripts.chart.serve_mapping import chart_files_data
from scripts.chart.values_file import needed_paths, values_table, values_yaml
from scripts.chart.values_schema import values_schema

_ROOT = Path(__file__).resolve().parents[2]


def generated_files(root: Path = _ROOT) -> Mapping[Path, str]:
    chart = root / "helm"
    return {
        root / "docs" / "live.schema.json": json.dumps(live_json_schema(), indent=1, sort_keys=True) + "\n",
        root / "examples" / "fleet.schema.json": json.dumps(fleet_json_schema(), indent=2, ensure_ascii=False) + "\n",
        **{
            path: serve_yaml(read_fleet_file(root / "examples" / path.name, source_root=Path("/models")))
            for path in sorted((root / "examples" / "serve").glob("*.yaml"))
        },
        chart / "values.yaml": values_yaml(),
        chart / "values.schema.json": json.dumps(values_schema(), indent=1, sort_keys=True) + "\n",
        chart / "files" / "needed-values.json": json.dumps(needed_paths(), indent=1) + "\n",
        chart / "files" / "fleet.json": json.dumps(chart_files_data(), indent=1, sort_keys=True) + "\n",
        **{
            chart / "files" / "dashboards" / f"{board.name}.json": dashboard_json(board)
            for board in (fleet_dashboard(), units_dashboard(), cluster_dashboard())
        },
        chart / "README.md": with_table(chart / "README.md", "values", values_table()),
        **documents(root),
    }


def stale_files(root: Path = _ROOT) -> list[Path]:
    return [path for path, text in generated_files(root).items() if not path.exists() or path.read_text() != text]


def main() -> None:
    stale = stale_files()
    if "--check" in sys.argv[1:]:
        if stale:
            sys.exit("stale, run `make chart`: " + ", ".join(str(p.relative_to(_ROOT)) for p in stale))
        return
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
