"""values.schema.json."""

from typing import Any

from scripts.chart.kubernetes_types import resolved
from scripts.chart.values import ChartValues


def values_schema() -> dict[str, Any]:
    """Draft 7 is what every Helm 3 and 4 understands."""
    schema = resolved(ChartValues.model_json_schema(by_alias=True))
    plain = _without_titles(schema)
    assert isinstance(plain, dict)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the muxfleet chart", **plain}


def _without_titles(node: object) -> object:
    """Pydantic's titles repeat the names. A key `title` inside `properties` is a name itself."""
    if isinstance(node, dict):
        return {
            key: {name: _without_titles(child) for name, child in value.items()}
            if key in {"properties", "$defs", "patternProperties"}
            else _without_titles(value)
            for key, value in node.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(node, list):
        return [_without_titles(value) for value in node]
    return node
