"""What `make test` leaves to `make test-long` is there."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from long_tests import LEFT_TO_CI, LONG, TURNS, holds_long, is_all_among, is_left_to_ci, is_long, is_of_part, is_of_turn

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("beginning", [*LONG, *LEFT_TO_CI])
def test_long_tests__every_beginning__is_of_tests_that_are_there(beginning: str) -> None:
    path, _, test = beginning.partition("::")

    assert (ROOT / path).exists()
    assert not test or f"def {test.partition('[')[0]}" in (ROOT / path).read_text()


@pytest.mark.parametrize("beginning", LONG)
def test_parts__of_any_commits__have_each_long_test_in_one_of_them(beginning: str) -> None:
    parts = range(1000, 1000 + -(-len(LONG) // 3))

    assert sum(is_of_part(beginning, number) for number in parts) == 1
    assert not is_of_part("tests/test_long_tests.py", 0)


@pytest.mark.parametrize("beginning", LEFT_TO_CI)
def test_turns__of_any_three_days__have_each_test_that_is_left_to_ci_once(beginning: str) -> None:
    assert sum(is_of_turn(beginning, day) for day in range(20_000, 20_000 + TURNS)) == 1


@pytest.mark.parametrize(("variables", "turn"), [((), ""), (("CI_DAY=20785",), " --turn=20785")])
@pytest.mark.parametrize("target", ["test", "test-k8s"])
def test_make__with_and_without_a_day__runs_its_third_or_all(target: str, variables: Sequence[str], turn: str) -> None:
    make = subprocess.run(
        ["make", "-n", target, "CI=", "CI_DAY=", *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = make.stdout.splitlines()[-1]
    assert ("--turn" in command, turn in command) == (bool(turn), True)


@pytest.mark.parametrize("beginning", LONG)
def test_file__of_long_tests__is_collected_for_them_and_left_alone_without_others(beginning: str) -> None:
    path, _, test = beginning.partition("::")
    file = path.removesuffix("/")

    assert holds_long(file)
    assert is_all_among(file, LONG) == (not test)
    assert not holds_long("tests/test_long_tests.py")
    assert not is_all_among("tests", LONG)


def test_ci__all_but_the_longest__are_run_and_the_longest_have_a_command() -> None:
    commands = (ROOT / ".ci/run").read_text()
    targets = (ROOT / "Makefile").read_text()

    assert "\nexport CI=true CI_DAY=" in commands
    assert "\nmake test ||" in commands
    assert "\nnice -n 5 make test-k8s " in commands
    assert '  make test-long ARGS="--part=$CI_DAY" ' in commands
    assert "$(PYTEST) -m long $(or $(ARGS),$(SPREAD))" in targets
    assert is_long("tests/test_extending.py::test_policy__as_the_page_shows_it__serves_requests_by_its_name")
    assert not is_long("tests/test_long_tests.py::test_ci__all_but_the_longest")


@pytest.mark.parametrize(("variables", "marked"), [((), "not long and not ci"), (("CI=true",), "not long")])
def test_make_test__with_and_without_ci__leaves_to_ci_what_is_marked(variables: tuple[str, ...], marked: str) -> None:
    make = subprocess.run(
        ["make", "-n", "test", "CI=", *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert f' -m "{marked}" ' in make.stdout.splitlines()[-1]


def test_left_to_ci__other_marks__are_none_of_it() -> None:
    assert is_left_to_ci("tests/e2e/test_haproxy.py::test_haproxy__replay__answers_everything")
    assert not is_left_to_ci("tests/e2e/test_haproxy.py::test_haproxy__engine_killed_while_streaming__stream_goes_on")
    assert not is_left_to_ci(
        "tests/e2e/test_fleet.py::test_metrics__of_a_fleet_that_serves__have_what_the_dashboards_ask"
    )


@pytest.mark.parametrize("target", ["test", "test-long", "test-k8s"])
def test_ci__what_failed__is_tried_once_more_by_a_command_that_a_shell_can_read(target: str) -> None:
    make = subprocess.run(["make", "-n", target, "CI=true"], cwd=ROOT, capture_output=True, text=True, check=True)
    command = make.stdout.splitlines()[-1]

    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert command.partition(" || ")[2].count("--last-failed") == 2
