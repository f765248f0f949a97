"""Pages about runs: what a run found is on them, they fetch nothing, and what is no run is answered with one line."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_paper_experiments import SMALL, written
from typer.testing import CliRunner

from deploy.cli import build_app
from deploy.errors import OptionNotUsable
from deploy.reports.page import ReportSection, ReportTable, page_html
from deploy.simulation.papers.measurement import CaseResult, RunningCase

ROOT = Path(__file__).parents[2]
FLEET = """
name: one
models:
  - id: small
    source: SOURCE
    max_model_len: 4096
    demand: {rate_per_s: 4.0, prompt_tokens: 300, output_tokens: 20}
pools:
  - {device: simulated, gpu_type: H100, kv_memory: 8GiB}
"""


def run(*words: str) -> str:
    done = CliRunner().invoke(build_app(), list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def fetched(page: str) -> list[str]:
    """Addresses that a browser would ask for, but for places on the page."""
    named = re.findall(r"(?:src|href|action|data)\s*=\s*\"([^\"]*)\"|url\(([^)]*)\)|@import\s+(\S+)", page)
    return [a for address in named for a in address if a and not a.startswith(("data:image/svg+xml;base64,", "#"))]


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    fleet, out = tmp_path / "fleet.yaml", tmp_path / "run.json"
    fleet.write_text(FLEET.replace("SOURCE", str(ROOT / "examples" / "models" / "qwen2.5-1.5b")))
    run(
        *("simulate", str(fleet), "--duration", "3", "--policy", "mux", "--policy", "prefill_first", "--json", str(out))
    )
    return out


def test_report__simulated_run__shows_figures_fleet_and_command_and_fetches_nothing(
    simulated: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    run("report", str(page), str(simulated))
    text, found = page.read_text(), json.loads(simulated.read_text())
    assert fetched(text) == []
    assert "<script" not in text
    assert text.count("<img ") == 3, "TTFT, TBT and TPOT"
    assert "<h1>Simulated: fleet one</h1>" in text
    assert (
        f"muxfleet simulate {tmp_path / 'fleet.yaml'} --policy mux --policy prefill_first --duration 3.0"
        in unescape(text)
    )
    assert "rate_per_s: 4.0" in text
    for name in ("mux", "prefill_first"):
        p99_s = found["deployments"][name]["total"]["ttft_s"]["p99"]
        assert f"<td>{1000 * p99_s:.3g} ms</td>" in text


def test_simulate__json__distributions_ascend_to_the_percentiles_beside_them(simulated: Path) -> None:
    mux = json.loads(simulated.read_text())["deployments"]["mux"]
    for time in ("ttft_s", "tbt_s"):
        seconds, percents = mux["distributions"][time], mux["distributions"]["percents"]
        assert seconds == sorted(seconds)
        assert seconds[percents.index(99)] == mux["total"][time]["p99"]


def test_compare__all_with_report__one_page_of_every_figure(tmp_path: Path) -> None:
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    folder = tmp_path / "papers"
    folder.mkdir()
    for name in ("first", "second"):
        written(folder, {**SMALL, "name": name, "notes": ["a <note>"]}).rename(folder / f"{name}.yaml")
    run("compare", str(folder), "--all", "--quick", "--report", str(page), "--json", str(out))
    found, text = json.loads(out.read_text()), page.read_text()
    assert [figure["experiment"] for figure in found["figures"]] == ["first", "second"]
    assert fetched(text) == []
    assert text.count("<img ") == 2
    assert text.count("1 of 1 orderings are as published") == 2
    assert "a &lt;note&gt;" in text
    again = tmp_path / "again.html"
    run("report", str(again), str(out))
    assert again.read_text() == text


def test_compare__all_cut_off__page_and_figures_are_of_those_that_were_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, out, folder = tmp_path / "page.html", tmp_path / "out.json", tmp_path / "papers"
    folder.mkdir()
    for name in ("first", "second"):
        written(folder, {**SMALL, "name": name}).rename(folder / f"{name}.yaml")
    result = RunningCase.result
    done = iter((result, None))

    def cut_off_at_the_second(self: RunningCase, *args: Any) -> CaseResult:
        if next(done) is None:
            raise KeyboardInterrupt
        return result(self, *args)

    monkeypatch.setattr(RunningCase, "result", cut_off_at_the_second)
    words = ["compare", str(folder), "--all", "--quick", "--report", str(page), "--json", str(out)]
    assert CliRunner().invoke(build_app(), words).exit_code != 0
    assert [figure["experiment"] for figure in json.loads(out.read_text())["figures"]] == ["first"]
    assert page.read_text().count("<img ") == 1


def test_report__of_a_measured_run__shows_models_and_total(tmp_path: Path) -> None:
    figures = {
        "requests": 7,
        "finished": 6,
        "ttft_s": {"p50": 0.25, "p99": None},
        "tbt_s": {"p50": 0.02, "p99": 0.04},
        "request_attainment": 0.5,
    }
    measured, page = tmp_path / "bench.json", tmp_path / "page.html"
    measured.write_text(json.dumps({"models": {"m": figures}, "total": figures, "command": "muxfleet bench URL"}))
    run("report", str(page), str(measured))
    text = page.read_text()
    assert text.count("<td>250 ms</td><td>-</td><td>20 ms</td><td>40 ms</td><td>50.0%</td>") == 2
    assert "muxfleet bench URL" in text


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"deployments": 3}', '{"orderings": [{}]}', "[" * 100_000),
        *('{"deployments": {}}', '{"deployments": {"mux": {}}}', '{"figures": []}'),
        pytest.param('{"models": {}, "total": {"rate_per_s": 1.0}, "units": []}', id="a plan"),
        pytest.param('{"models": {}, "total": {"requests": 1}, "command": 5}', id="a command that is no text"),
    ],
    ids=lambda content: content[:30],
)
def test_report__file_that_is_no_run__is_named_with_what_it_should_be(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    done = CliRunner().invoke(build_app(), ["report", str(tmp_path / "page.html"), str(path)])
    assert isinstance(done.exception, OptionNotUsable)
    assert str(path) in str(done.exception)
    assert "simulate, bench or compare has written with --json" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ((), "name an experiment file"),
        (("PAPERS",), "add --all"),
        (("PAPERS/muxwise-fig17.yaml", "--all"), "leave out --all"),
        (("EMPTY", "--all"), "holds no *.yaml"),
        (("PAPERS", "--all", "--case", "x"), "goes with one experiment file"),
    ],
)
def test_compare__files_that_cannot_be__is_answered_with_the_remedy(
    tmp_path: Path, words: tuple[str, ...], remedy: str
) -> None:
    papers = str(ROOT / "examples" / "papers")
    given = [word.replace("EMPTY", str(tmp_path)).replace("PAPERS", papers) for word in words]
    done = CliRunner().invoke(build_app(), ["compare", *given])
    assert isinstance(done.exception, OptionNotUsable)
    assert remedy in str(done.exception)


def test_report__page_forgotten__leaves_the_first_run_alone(tmp_path: Path) -> None:
    first = tmp_path / "a.json"
    first.write_text("{}")
    done = CliRunner().invoke(build_app(), ["report", str(first), str(tmp_path / "b.json")])
    assert isinstance(done.exception, OptionNotUsable)
    assert "name the page with .html" in str(done.exception)
    assert first.read_text() == "{}"


def test_page__names_with_markup__are_text() -> None:
    bad = "<script>alert(1)</script>"
    section = ReportSection(
        title=bad,
        command=bad,
        texts=(bad,),
        warnings=(bad,),
        tables=(ReportTable(titles=(bad,), rows=((bad,),)),),
        notes=(bad,),
        sources=((bad, bad),),
    )
    assert "<script" not in page_html(bad, [section])
