"""Long work says how far it is, also where its output goes through a pipe."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import TextColumn

from deploy.commands import told_progress
from deploy.commands.compare import ComparisonProgress
from deploy.commands.told_progress import ToldProgress, told_work

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulated-8gpu.yaml"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_progress, "_EVERY_S", 0.01)


def until_told(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Returns all that was written to standard error by then; a hang here is a line that never comes."""
    err = ""
    deadline_s = time.monotonic() + 60
    while line not in err and time.monotonic() < deadline_s:
        time.sleep(0.01)
        err += capsys.readouterr().err
    return err


def test_progress__no_terminal__is_lines_on_standard_error_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with ToldProgress(TextColumn("{task.description}"), console=Console(force_terminal=False)) as progress:
        task = progress.add_task("draining node n", total=7)
        progress.update(task, completed=3)
        told = until_told(capsys, "draining node n: 3 of 7 (0 s)\n")
    capsys.readouterr()
    time.sleep(0.05)

    assert "draining node n: 3 of 7 (0 s)\n" in told
    assert capsys.readouterr().err == ""


def test_progress__terminal__is_a_bar_and_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ToldProgress(TextColumn("{task.description}"), console=Console(force_terminal=True)) as progress:
        progress.add_task("draining node n", total=7)
        time.sleep(0.05)

    out, err = capsys.readouterr()
    assert "draining node n" in out
    assert err == ""


def test_comparison__no_system_runs_yet__says_no_more_than_how_many() -> None:
    with ComparisonProgress(Console(force_terminal=True), systems=2) as progress:
        progress.figure("muxserve-fig5")
        planning = progress.line()
        progress.run("3 of 9 requests")

        assert planning == "muxserve-fig5: 0 of 2 systems"
        assert progress.line() == "muxserve-fig5: 0 of 2 systems (3 of 9 requests)"


def test_work_of_unknown_length__no_terminal__says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with told_work(Console(force_terminal=False), "planning with search"):
        assert "planning with search (0 s)\n" in until_told(capsys, "planning with search (0 s)\n")


def test_simulate__through_a_pipe__says_how_far_it_is_beside_its_tables(run: Run) -> None:
    code, out, err = run("simulate", EXAMPLE, "--duration", 20)

    assert code == 0
    assert "simulating: " in err
    assert " requests (" in err
    assert "simulating" not in out
