"""A fleet under load while something breaks: every accepted request is answered once, with the tokens it would have
had in peace. The scenarios share one fleet and follow each other, so each begins with what the last one left.
"""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from chaos_faults import (
    FAULTS,
    Fault,
    continuations,
    events_of_requests,
    kill_engine,
    unit_ids,
    until_balanced,
    until_well,
)
from chaos_fleet_file import fleet_of
from chaos_load import MODELS, Load, ask_once
from fleet_process import FleetProcess
from fleets.byte_checkpoint import write_checkpoint
from killed_engine_story import check_story, show_in_runbook, shown_in_runbook

from deploy.control.fleet_status import ModelState
from deploy.inspection.fleet_report import fleet_report

PORT = 20411
COMMAND_STARTS_S = 15.0  # `--since` counts from when the fleet is asked, and the machine may be busy
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_runbook__its_incident__is_the_story_of_an_engine_killed_under_load() -> None:
    """The test below writes it there."""
    assert check_story(shown_in_runbook()) >= 1


def test_incident__engine_killed_under_load__is_told_as_the_runbook_shows(
    chaos_fleet: FleetProcess, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    """`UPDATE_RUNBOOK=1` writes what `muxfleet incident` printed into the runbook."""

    async def trouble() -> None:
        before = await unit_ids(chaos_fleet)
        await kill_engine(chaos_fleet)
        await until_well(chaos_fleet, other_than=before)

    if is_for_the_page := bool(os.environ.get("UPDATE_RUNBOOK")):
        time.sleep(COMMAND_STARTS_S)  # what was before is no part of it
    began_s, continued = time.time(), continuations(chaos_fleet)
    run = load.through(trouble)
    moved = continuations(chaos_fleet) - continued
    events = events_of_requests(chaos_fleet, since_s=int(began_s), moved=moved)  # waits for what gateways tell later
    since = f"{int(time.time() - began_s + COMMAND_STARTS_S)}s"
    told = subprocess.run(
        chaos_fleet.command("incident", chaos_fleet.url, "--since", since), capture_output=True, text=True, timeout=60
    )

    with capsys.disabled():
        print(f"\n{told.stdout}")
    assert told.returncode == 0, told.stderr
    assert not run.lost()
    assert not run.refused()
    assert not run.wrong()
    assert check_story(told.stdout) == moved == events["request_moved"] >= 1
    assert events["unit_lost"] == events["unit_restarted"] == 1
    asyncio.run(until_balanced(chaos_fleet))
    if is_for_the_page:
        show_in_runbook(told.stdout)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name.replace(" ", "_"))
def test_fault__under_load__every_request_is_answered_once_with_its_tokens(
    chaos_fleet: FleetProcess, load: Load, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    recovered: list[float] = []

    async def trouble() -> None:
        before = await unit_ids(chaos_fleet) if fault.takes_units else frozenset()
        await fault.strike(chaos_fleet)
        recovered.append(await until_well(chaos_fleet, other_than=before))

    began_s, continued = int(time.time()), continuations(chaos_fleet)
    run = load.through(trouble)

    with capsys.disabled():
        print(f"\n  {fault.name}: {len(run.answers)} requests, well again after {recovered[0]:.1f} s", end="")
        print(f", longest silence {run.longest_silence_s():.1f} s", end="")
        print(f", {len(run.broken())} connections broken" if run.broken() else "")
    if fault.breaks_connections:  # the client sees that, and asks again
        assert len(run.lost()) + len(run.refused()) <= 12, "only those that were connected to it"
    else:
        assert not run.lost()
        assert not run.refused()
    assert not run.wrong()
    if fault.silence_s is not None:  # streams go on elsewhere before who hangs is given up
        assert run.longest_silence_s() < fault.silence_s
    asyncio.run(until_balanced(chaos_fleet))
    if fault.takes_units:
        moved = continuations(chaos_fleet) - continued
        told = events_of_requests(chaos_fleet, since_s=began_s, moved=moved)
        with capsys.disabled():
            print(f"; {moved} went on elsewhere, events: {dict(told)}", end="")
        assert moved
        assert told["request_moved"] == moved
        assert told["unit_lost"] == told["unit_restarted"] >= 1


def test_sleeper__asked_for_then_left_alone__wakes_within_the_request_and_goes_again(
    chaos_fleet: FleetProcess, load: Load
) -> None:
    def sleeper() -> ModelState:
        (model,) = [m for m in fleet_report(chaos_fleet.url).models if m.model == "sleeper"]
        return model

    def state() -> tuple[bool, bool]:
        return sleeper().is_asleep, sleeper().is_ready

    before = state()
    answered = ask_once(chaos_fleet.url, "sleeper")
    awake = state()
    until_s = time.monotonic() + 90
    while (state() != (True, False) or not sleeper().asleep_on) and time.monotonic() < until_s:
        time.sleep(0.5)
    asleep_on = sleeper().asleep_on
    again = ask_once(chaos_fleet.url, "sleeper")
    report = fleet_report(chaos_fleet.url)

    assert len(asleep_on) == 1, "its weights stayed in host memory"
    assert again.ends == {"length": 1}, again
    assert any(f"wake sleeper on {asleep_on[0]}" in d.moves for d in report.decisions)
    assert before == (True, False)
    assert answered.ends == {"length": 1}, answered
    assert awake == (False, True)


def test_apply__model_that_does_not_load_and_one_that_fits_nowhere__others_go_on(
    chaos_fleet: FleetProcess, chaos_folder: Path, load: Load
) -> None:
    write_checkpoint(chaos_folder / "broken", (4, 256, 512, 4, 4, 64))
    (chaos_folder / "broken" / "tokenizer.json").write_text("{}")
    write_checkpoint(chaos_folder / "huge", (200, 16384, 65536, 128, 8, 128))
    extra = tuple({"id": name, "source": f"./{name}"} for name in ("broken", "huge"))

    async def trouble() -> None:
        command = ["apply", str(fleet_of(chaos_folder, port=PORT, extra=extra))]
        until_s = time.monotonic() + 120
        process = await asyncio.create_subprocess_exec(*chaos_fleet.command(*command))
        assert await process.wait() == 1
        while time.monotonic() < until_s:
            found = {m.model: m.problem for m in fleet_report(chaos_fleet.url).models}
            if found.get("broken") and found.get("huge"):
                break
            await asyncio.sleep(0.3)
        problems.update(found)
        process = await asyncio.create_subprocess_exec(
            *chaos_fleet.command("apply", str(fleet_of(chaos_folder, port=PORT)))
        )
        assert await process.wait() == 0

    problems: dict[str, str | None] = {}
    run = load.through(trouble)

    assert "tokenizer" in (problems["broken"] or "")
    assert "GiB" in (problems["huge"] or "")
    assert all(problems[m] is None for m in MODELS)
    assert not run.lost()
    assert not run.wrong()
    assert not run.refused()
    assert {m.model for m in fleet_report(chaos_fleet.url).models} == {*MODELS, "sleeper"}


@pytest.mark.slow
def test_raylet_and_gcs__stand_for_90_s__nobody_notices(chaos_fleet: FleetProcess, load: Load) -> None:
    """Longer than Ray by default takes a node for alive that does not answer: the whole fleet was lost."""
    standing = [chaos_fleet.process(title=title) for title in ("/raylet/raylet", "/gcs/gcs_server")]

    async def stand() -> None:
        for part in standing[:1], standing:
            for process in part:
                process.suspend()
            try:
                await asyncio.sleep(90.0)
            finally:
                for process in part:
                    process.resume()
            await asyncio.sleep(5.0)

    run = load.through(stand, after_s=5.0)

    assert all(process.is_running() for process in standing)
    assert not run.lost()
    assert not run.refused()
    assert not run.wrong()


@pytest.mark.slow
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(10_000, marks=pytest.mark.timeout(1800)),
        pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_requests__many__memory_descriptors_and_threads_stay_flat(
    chaos_fleet: FleetProcess, load: Load, requests: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What leaks per request grows for as long as they come: the second half of the run is held against its middle."""

    def usage() -> dict[str, int]:
        found = [p for p in chaos_fleet.processes() if p.is_running()]
        return {
            "rss_bytes": sum(p.memory_info().rss for p in found),
            "descriptors": sum(p.num_fds() for p in found),
            "threads": sum(p.num_threads() for p in found),
        }

    async def a_while() -> None:
        await asyncio.sleep(20.0)

    marks: list[tuple[int, dict[str, int]]] = []
    answered = 0
    while answered < requests:  # the test's own timeout bounds it
        run = load.through(a_while, after_s=0.0, clients=40, max_tokens=8)
        assert not run.lost()
        assert not run.wrong()
        answered += len(run.answers)
        marks.append((answered, usage()))
        with capsys.disabled():
            print(f"\n  {json.dumps({'requests': answered} | marks[-1][1])}", end="")
    (_, warm), (_, middle), (_, end) = marks[0], marks[len(marks) // 2], marks[-1]
    assert end["rss_bytes"] < 1.15 * warm["rss_bytes"]
    assert end["rss_bytes"] < 1.05 * middle["rss_bytes"]
    assert end["descriptors"] < warm["descriptors"] + 100
    assert end["threads"] < warm["threads"] + 100
