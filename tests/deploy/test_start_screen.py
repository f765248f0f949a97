import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from deploy.commands import start_screen
from deploy.commands.start_screen import ModelLines, StartScreen
from deploy.control.fleet_status import ModelState
from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def state(*phases: ModelPhase, problem: str | None = None) -> ModelState:
    return ModelState(model="m", phases=phases, planned_units=("u",), problem=problem)


def test_model_lines__it_fails_again_and_again__its_problem_is_said_once(console: Console) -> None:
    lines = ModelLines(console)
    for _ in range(5):
        lines.show(state(ModelPhase.LOADING))
        lines.show(state(ModelPhase.FAILED, problem="no such file"))
        lines.show(state(ModelPhase.LOADING, problem="no such file"))

    assert written(console).count("no such file") == 1


def test_model_lines__another_problem__is_said_too(console: Console) -> None:
    lines = ModelLines(console)
    lines.show(state(ModelPhase.FAILED, problem="no such file"))
    lines.show(state(ModelPhase.FAILED, problem="no memory"))

    assert "no memory" in written(console)


def test_start_screen__no_terminal__a_line_per_stage(console: Console) -> None:
    stages: list[str] = []
    screen = StartScreen(console, time.monotonic(), stages.append)
    with screen:
        screen.announce("starting Ray")
        for stage in ("loading m", "loading m", "waiting for the gateways", "waiting for the gateways"):
            screen.stage(stage)

    assert [line.split("s  ")[-1] for line in written(console).splitlines()] == [
        "starting Ray",
        "loading m",
        "waiting for the gateways",
    ]
    assert stages == ["starting Ray", "loading m", "waiting for the gateways"]


def test_start_screen__terminal__shows_the_stage_as_it_lives() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with StartScreen(console, time.monotonic(), lambda stage: None) as _:
        pass
    screen = StartScreen(console, time.monotonic(), lambda stage: None)
    with screen:
        screen.stage("loading m")
        time.sleep(0.3)  # the spinner draws by itself

    assert "loading m" in written(console)


def test_start_screen__weights_are_read__shows_how_far_that_is() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    screen = StartScreen(console, time.monotonic(), lambda stage: None)
    progress = LoadProgress(stage=LoadStage.READING, done_bytes=5 * 10**9, total_bytes=10 * 10**9)
    with screen:
        screen.note_progress([replace(state(ModelPhase.LOADING), progress=progress)])
        screen.stage("loading m")
        time.sleep(0.3)

    assert "loading m; m reading ███░░░ 50% of 10.0 GB" in written(console)


def test_start_screen__graphs_are_captured__shows_how_many() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    screen = StartScreen(console, time.monotonic(), lambda stage: None)
    progress = LoadProgress(
        stage=LoadStage.CAPTURING, done_bytes=10**10, total_bytes=10**10, done_graphs=145, total_graphs=290
    )
    with screen:
        screen.note_progress([replace(state(ModelPhase.LOADING), progress=progress)])
        screen.stage("loading m")
        time.sleep(0.3)

    assert "loading m; m capturing ███░░░ 145 of 290 graphs" in written(console)


def test_start_screen__no_terminal__tells_how_far_it_is_now_and_then(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_screen, "_STILL_EVERY_S", -1.0)
    screen = StartScreen(console, time.monotonic(), lambda stage: None)
    progress = LoadProgress(stage=LoadStage.DOWNLOADING, done_bytes=10**9, total_bytes=4 * 10**9)
    with screen:
        screen.note_progress([replace(state(ModelPhase.LOADING), progress=progress)])
        screen.stage("loading m")
        screen.stage("loading m")

    assert "still loading m; m downloading ██░░░░ 25% of 4.0 GB" in written(console)
