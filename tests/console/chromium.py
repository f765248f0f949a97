"""Chromium, driven through its chromedriver by the WebDriver protocol."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 60.0
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing() -> str | None:
    """Says what is not here, and how it comes; None: all is."""
    if not any(map(shutil.which, BROWSERS)) or shutil.which("chromedriver") is None:
        return "needs Chromium and its driver: apt-get install chromium chromium-driver"
    return None


class Page:
    """One window. `seen` collects what its console says and which hosts it asks."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = f"/session/{session}"

    def open(self, url: str) -> None:
        self._post("/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """The body of a function; it may return a promise."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "main") -> str:
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def click(self, selector: str) -> None:
        self.wait_for(
            f"{selector} to click", lambda: self.run("return !!document.querySelector(arguments[0])", selector)
        )
        self.run("document.querySelector(arguments[0]).click()", selector)

    def press(self, keys: str) -> None:
        """To what has the focus."""
        element = self._driver.get(f"{self._session}/element/active").json()["value"][_ELEMENT]
        self._post(f"/element/{element}/value", {"text": keys})

    def wait_for(self, what: str, is_so: Callable[[], object], within_s: float = WAIT_S) -> float:
        """Returns the seconds that it took."""
        began_s = time.monotonic()
        while not is_so():
            waited_s = time.monotonic() - began_s
            assert waited_s < within_s, f"no {what} in {within_s:g} s; the page says:\n{self.text('body')}"
            time.sleep(0.05)
        return time.monotonic() - began_s

    def resize(self, width: int, height: int, *, scale: float = 1.0) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`; nothing moves, as in a screenshot it would be on its way."""
        told = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in told.items()]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self) -> bytes:
        return base64.b64decode(self._driver.get(f"{self._session}/screenshot").json()["value"])

    def errors(self) -> list[str]:
        """What the browser's console says since the last call, but for answers that a test provokes."""
        entries = self._post("/se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> set[str]:
        """The URLs that were asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self._post("/se/log", {"type": "performance"})]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if url.startswith(("http", "ws"))}

    def _devtools(self, command: str, parameters: dict[str, object]) -> None:
        self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _post(self, path: str, body: dict[str, object]) -> Any:
        answer = self._driver.post(f"{self._session}{path}", json=body).json()["value"]
        assert not (isinstance(answer, dict) and "stacktrace" in answer), answer.get("message")
        return answer


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Its profile lies in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = shutil.which("chromedriver")
    assert program is not None
    process = subprocess.Popen([program, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as driver:
            _wait_until_listening(driver)
            session = driver.post("/session", json={"capabilities": {"alwaysMatch": _capabilities(folder)}}).json()
            assert "sessionId" in session["value"], session["value"]
            page = Page(driver, session["value"]["sessionId"])
            try:
                yield page
            finally:
                driver.delete(f"/session/{session['value']['sessionId']}")
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_listening(driver: httpx.Client) -> None:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            driver.get("/status")
            return
        except httpx.TransportError:
            assert time.monotonic() < until_s, "chromedriver does not listen"
            time.sleep(0.05)


def _capabilities(folder: Path) -> dict[str, object]:
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    quiet = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--lang=en-GB"]
    return {
        "browserName": "chrome",
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        "goog:chromeOptions": {
            "binary": next(path for name in BROWSERS if (path := shutil.which(name))),
            "args": [*arguments, *quiet, f"--user-data-dir={folder}"],
        },
    }
