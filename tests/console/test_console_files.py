"""The console's files: whose they are, and what a browser is told about them."""

import hashlib
import re
from pathlib import Path

from starlette.testclient import TestClient

from router.http.app import create_app
from router.serving.gateway import Gateway

FOLDER = Path(__file__).parents[2] / "router" / "http" / "console"


def test_vendored_files__any__are_those_of_their_table() -> None:
    table = (FOLDER / "vendor" / "README.md").read_text()
    sums = dict(re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", table, flags=re.MULTILINE))
    there = {p.name for p in (FOLDER / "vendor").glob("*.js")}

    assert there == set(sums)
    assert {n: hashlib.sha256((FOLDER / "vendor" / n).read_bytes()).hexdigest() for n in there} == sums
    assert all((FOLDER / "vendor" / name).is_file() for name in re.findall(r"`(LICENSE-[^`]+)`", table))


def test_page__any_file__loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", page)
    for file in FOLDER.glob("*.*"):
        addresses = re.findall(r"https?://[^\s\"'`)]+", file.read_text())
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, file.name


def test_console__asked_for__is_served_with_a_strict_policy_and_an_etag() -> None:
    client = TestClient(create_app(Gateway(), has_console=True))
    page = client.get("/console")
    policy = page.headers["content-security-policy"]

    assert page.status_code == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert client.get("/console", headers={"if-none-match": page.headers["etag"]}).status_code == 304
    assert client.get("/console/app.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/console/", follow_redirects=False).headers["location"] == "../console"


def test_console__what_is_no_file_of_it__is_not_found() -> None:
    client = TestClient(create_app(Gateway(), has_console=True))
    for name in ("nothing.js", "vendor/README.md", "../app.py", "..%2fapp.py"):
        assert client.get(f"/console/{name}").status_code == 404, name


def test_console__switched_off__is_not_found() -> None:
    client = TestClient(create_app(Gateway(), has_console=False))
    assert client.get("/console").status_code == 404
    assert client.get("/console/app.js").status_code == 404
