"""The trace that a forecast begins with: whose its requests are, and what is said of one that cannot be used."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.control.scaled_pools import readable_seasons, seasons_of
from deploy.errors import FleetFileError
from deploy.fleet_file.settings import FleetFile, check_sources, parse_fleet_file

FLEET = """
models:
  - {id: a, source: org/a, demand: {rate_per_s: 3.0}}
  - {id: b, source: org/b, demand: {rate_per_s: 1.0}}
pools: [{nodes: {max: 3}, scaling: {forecast: {season_s: 2400, trace: day}}}]
"""
LINE = '{"timestamp": 1, "input_length": %d, "output_length": 10}\n'


def fleet(base: Path) -> FleetFile:
    return parse_fleet_file(FLEET, name="f.yaml", base=base)


def test_trace__some_requests_name_a_model_of_the_fleet__the_others_count_for_all_by_their_demand(
    tmp_path: Path,
) -> None:
    times_s = [10.0 * i for i in range(241)]
    table = {
        "arrival_s": times_s + [t + 5 for t in times_s],
        "input_tokens": [10] * 482,
        "output_tokens": [10] * 482,
        "model": ["a"] * 241 + ["elsewhere"] * 241,
    }
    pq.write_table(pa.table(table), tmp_path / "day")
    file = fleet(tmp_path)

    season = seasons_of({p.name: p for p in file.pools}, file.models)["default"]

    assert season.season_s == 2400
    assert season.rates_per_s["a"][3] == pytest.approx(0.175)
    assert season.rates_per_s["b"][3] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("hello", "unknown format"),
        (LINE % 10, "its requests have no times, or all the same"),
        (LINE % -5, "row 1: input_length=-5 is not usable"),
    ],
)
def test_trace__cannot_be_used__one_line_names_the_field_and_the_control_loop_does_without(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "day").write_text(content)
    file = fleet(tmp_path)
    pools = {p.name: p for p in file.pools}

    with pytest.raises(FleetFileError) as refused:
        seasons_of(pools, file.models)

    assert str(refused.value).startswith("pools[0].scaling.forecast.trace = ")
    assert reason in str(refused.value)
    assert readable_seasons(pools, file.models)["default"].seen == ()


def test_check_sources__trace_is_not_there__is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"pools\[0\]\.scaling\.forecast\.trace"):
        check_sources(fleet(tmp_path))
