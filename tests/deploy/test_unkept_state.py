"""What is told of a control loop whose state cannot be kept, as on a full disk."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.fleet_tables import as_dict, problems
from deploy.control.fleet_status import FleetStatus
from deploy.serve import controller as controller_module
from deploy.serve.controller import Controller
from deploy.state import file_store, write_behind


async def told_when(controller: Controller, *, is_kept: bool) -> FleetStatus:
    async with asyncio.timeout(60):
        while (bool((status := await controller.status()).state_problem)) is is_kept:  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)
    return status


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_KEEP_EVERY_S", 0.01)
    monkeypatch.setattr(file_store, "_LOCKED_S", 0.01)
    monkeypatch.setattr(write_behind.WriteBehind.__init__, "__kwdefaults__", {"retry_s": 0.01})


def config(folder: Path) -> dict[str, Any]:
    return {"policy": "mux", "expected_units": {"p": 1}, "models": [], "state": {"folder": str(folder)}}


async def until_told(controller: Controller, text: bytes) -> None:
    async with asyncio.timeout(60):
        while text not in await controller.events(60):  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)


async def test_controller__state_file_is_locked_for_a_while__status_and_events_say_so(tmp_path: Path) -> None:
    controller = Controller(token="t")
    file = tmp_path / "fleet.sqlite3"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await controller.reconfigure(config(tmp_path))
        status = await told_when(controller, is_kept=False)
        await until_told(controller, b"state_not_kept")
        other.execute("ROLLBACK")
    again = await told_when(controller, is_kept=True)
    await until_told(controller, b"state is kept again")

    assert status.state_problem == f"{file}: database is locked; free its disk, or set state.folder to one to write in"
    line = f"the state of the control loop is not kept, its restart would lose it: {status.state_problem}"
    assert list(problems(status)) == [line]
    assert as_dict(status)["state_problem"] == status.state_problem
    assert as_dict(again)["state_problem"] is None
    assert not list(problems(again))
    assert (await controller.events(60)).count(b"state_not_kept") == 1


async def test_reconfigure__folder_that_can_be_written_instead__is_told_as_the_end_of_it(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    controller = Controller(token="t")
    await controller.reconfigure(config(tmp_path / "a file"))
    await until_told(controller, b"state_not_kept")

    await controller.reconfigure(config(tmp_path / "other"))

    await until_told(controller, b"state is kept again")
    assert not (await controller.status()).state_problem
