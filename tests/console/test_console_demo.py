"""The console before the demo's fleet under load. `UPDATE_SCREENSHOTS=docs/console` writes pictures of its pages."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from axe_findings import AXE, serious_findings
from chromium import Page, chromium, missing
from fleet_files import fleet_file
from fleet_process import FleetProcess, running_fleet

pytestmark = [pytest.mark.ray, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

PICTURED = ("fleet", "unit", "requests", "plan")
MODELS = ("demo-llama", "demo-qwen2", "demo-qwen3")


def chat(url: str, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "say something " * 20}], "max_tokens": 24}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False).status_code


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    """Somebody asks all the time."""
    with running_fleet(fleet_file(tmp_path_factory.mktemp("demo"), proxy="python")) as fleet:
        stop = threading.Event()

        def ask(model: str) -> None:
            while not stop.is_set():
                try:
                    chat(fleet.url, model)
                except httpx.HTTPError:
                    time.sleep(0.2)  # a unit of the fleet is killed below

        with ThreadPoolExecutor(5) as clients:
            for model in (MODELS[0], MODELS[0], *MODELS):
                clients.submit(ask, model)
            try:
                yield fleet
            finally:
                stop.set()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, loaded: FleetProcess) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        browser.resize(1280, 900)
        browser.prefer("light")
        browser.open(f"{loaded.url}/console")
        browser.wait_for("units", lambda: browser.run("return document.querySelectorAll('.unit').length"), 60)
        browser.errors()
        yield browser


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("UPDATE_SCREENSHOTS")
    if folder and name in PICTURED:
        (Path(folder) / f"{name}.png").write_bytes(page.screenshot())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fleet", "demo-llama"),
        ("unit", "Predicted against measured"),
        ("requests", "demo-"),
        ("plan", "why there?"),
        ("playground", "two side by side"),
        ("keys", "No API keys are in force"),
    ],
)
def test_page__demo_fleet_under_load__shows_it_without_an_error(
    name: str, says: str, page: Page, loaded: FleetProcess
) -> None:
    unit = page.run("return document.querySelector('[data-unit]')?.dataset.unit ?? ''")
    page.run("location.hash = arguments[0]", f"unit/{unit}" if name == "unit" else name)
    page.wait_for(says, lambda: says in page.text(), 60)
    if name == "requests":
        page.click(".receipt")
        page.wait_for("the receipt", lambda: "prompt tokens" in page.text())
    if name == "playground":
        page.run("document.querySelector('main input[type=checkbox]').click()")
        page.run("document.querySelector('#say').focus()")
        page.press("Say something\n")
        page.wait_for("both answers", lambda: page.text().count("tokens/s") == 2, 120)
    time.sleep(4)
    picture(page, name)
    if AXE.is_file():
        assert serious_findings(page) == []
    assert page.errors() == []
    assert all(url.startswith(loaded.url) for url in page.requested())
    page.run("location.hash = 'fleet'")
    page.wait_for("the fleet", lambda: "Units" in page.text())


def test_fleet__unit_killed__is_seen_in_two_seconds(page: Page, loaded: FleetProcess) -> None:
    state = "return document.querySelector('.unit [data-field=state]')?.innerText ?? 'gone'"
    page.wait_for("a good unit", lambda: page.run(state) == "ok", 60)
    loaded.actor().kill()

    took_s = page.wait_for("the loss", lambda: page.run(state) != "ok", 30)

    assert took_s < 3  # two, and what a busy machine adds
    page.wait_for("the next unit", lambda: page.run(state) == "ok", 180)
