"""The console before a simulated fleet of a hundred units: what it shows is what the API tells."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from axe_findings import AXE, serious_findings
from chromium import Page, chromium, missing
from simulated_fleet import BEAT_S, MODELS, POOLS, SimulatedFleet, simulated_fleet

from deploy.inspection.live_fleet import MAX_UNITS

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing()))]

PAGES = {
    "fleet": "48 of 100",
    "unit": "Predicted against measured",
    "requests": "model-",
    "plan": "why there?",
    "playground": "two side by side",
    "keys": "notebook",
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[SimulatedFleet]:
    with simulated_fleet() as served:
        yield served


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(browser: Page, fleet: SimulatedFleet) -> Iterator[Page]:
    """The fleet's page, wide and light, without a selection; whatever a test does, it ends without an error."""
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.open("about:blank")
    browser.open(f"{fleet.url}/console")
    browser.wait_for("units", lambda: num_units(browser) == MAX_UNITS)
    browser.errors()
    browser.requested()
    yield browser
    fleet.silent.clear()
    fleet.is_still = False
    assert browser.errors() == []
    assert {url for url in browser.requested() if not url.startswith(fleet.url)} == set()


def num_units(page: Page) -> int:
    return page.run("return document.querySelectorAll('.unit').length")


def told(fleet: SimulatedFleet, topic: str, **about: str) -> Any:
    """What the API says now."""
    asked = {"topic": topic, **about}
    with httpx.stream("GET", f"{fleet.url}/fleet/live", params=asked, timeout=30, trust_env=False) as answer:
        return next(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def fields(page: Page, row: str) -> dict[str, dict[str, str]]:
    """The figures of a table's rows, by what the row is of, without what is said below a figure."""
    return page.run(
        """const found = {};
        for (const row of document.querySelectorAll(`tr[data-${arguments[0]}]`))
          found[row.dataset[arguments[0]]] = Object.fromEntries([...row.querySelectorAll("td[data-field]")].map(
            (cell) => [cell.dataset.field, cell.firstChild?.textContent.trim() ?? ""]));
        return found;""",
        row,
    )


def go(page: Page, name: str) -> None:
    page.run("location.hash = arguments[0]", name)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", [(1280, 900, "light"), (390, 844, "dark")], ids=["desk", "phone"])
def test_page__hundred_units__is_shown_accessible_and_as_wide_as_the_screen(
    name: str, size: tuple[int, int, str], page: Page, fleet: SimulatedFleet
) -> None:
    width, height, scheme = size
    page.resize(width, height)
    page.prefer(scheme)
    unit = next(u.unit_id for u in fleet.units.values() if u.phases)
    go(page, f"unit/{unit}" if name == "unit" else name)
    page.wait_for(PAGES[name], lambda: PAGES[name] in page.text())
    if AXE.is_file():
        assert serious_findings(page) == []
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_fleet__figures_stand_still__are_those_of_the_api(page: Page, fleet: SimulatedFleet) -> None:
    fleet.is_still = True
    time.sleep(3 * BEAT_S)
    api = told(fleet, "fleet")
    models = {m["model"]: {f: str(m[f]) for f in ("waiting", "running", "units")} for m in api["models"]}
    pools = {p["pool"]: {f: str(p[f]) for f in ("units", "silent", "running", "waiting")} for p in api["pools"]}

    def shown(row: str, expected: dict[str, dict[str, str]]) -> bool:
        found = fields(page, row)
        return all(found.get(name, {}).get(f) == v for name, of in expected.items() for f, v in of.items())

    assert set(models) == set(MODELS)
    assert {p: int(of["units"]) for p, of in pools.items()} == POOLS
    page.wait_for(f"models {models}", lambda: shown("model", models), 20)
    page.wait_for(f"pools {pools}", lambda: shown("pool", pools), 20)
    index = "return document.querySelector('[data-field=jain_index]').innerText"
    page.wait_for("Jain's index", lambda: page.run(index) == f"{api['jain_index']:.2f}", 20)


def test_fleet__pool_then_text__narrow_the_units_to_those_of_the_api(page: Page, fleet: SimulatedFleet) -> None:
    def ids() -> list[str]:
        return page.run("return [...document.querySelectorAll('.unit')].map((u) => u.dataset.unit)")

    page.click("[data-pool=small] button")
    page.wait_for("the pool's units", lambda: ids() and all(u.startswith("small-") for u in ids()), 20)
    assert set(ids()) == {u["unit"] for u in told(fleet, "fleet", pool="small")["units"]}
    chosen = ids()[7]
    page.run("document.querySelector('input[type=search]').focus()")
    page.press(chosen)
    page.wait_for("the unit", lambda: ids() == [chosen], 20)
    page.click(".unit h3 a")
    page.wait_for("its page", lambda: "Predicted against measured" in page.text(), 20)
    assert page.run("return location.hash") == f"#unit/{chosen}"


def test_fleet__unit_falls_silent__stands_first(page: Page, fleet: SimulatedFleet) -> None:
    lost = next(u for u in reversed(fleet.units) if fleet.units[u].phases)
    fleet.silent.add(lost)

    def first() -> list[str]:
        """The first unit, and its state."""
        unit = "const u = document.querySelector('.unit')"
        return page.run(f"{unit}; return [u.dataset.unit, u.querySelector('[data-field=state]').innerText]")

    took_s = page.wait_for("the loss", lambda: first()[0] == lost and "silent" in first()[1], 20)
    print(f"seen after {took_s:.1f} s")
    assert "1 unit silent" in page.text(".verdict")
    fleet.silent.clear()
    page.wait_for("its return", lambda: "silent" not in first()[1], 20)


def test_pages__digits_and_tab__are_reached_without_a_mouse(page: Page) -> None:
    page.run("document.body.focus()")
    for digit, says in (("2", "slowest"), ("3", "What if"), ("4", "Send"), ("5", "Jain's index"), ("1", "48 of 100")):
        page.run("document.activeElement.blur()")
        page.press(digit)
        page.wait_for(says, lambda says=says: says in page.text(), 20)
    assert page.run("return document.activeElement.tagName") == "BODY"


def test_plan__what_if_of_rate_target_and_nodes__is_answered_by_the_planner(page: Page, fleet: SimulatedFleet) -> None:
    go(page, "plan")
    page.wait_for("the sliders", lambda: page.run("return document.querySelectorAll('.whatif input').length") == 4, 20)
    page.run(
        """for (const [name, value] of [["TBT target", "-2"], ["nodes", "16"]]) {
          const input = document.querySelector(`.whatif input[name="${name}"]`);
          input.value = value;
          input.dispatchEvent(new Event("input", {bubbles: true}));
        }"""
    )
    page.click(".whatif button.primary")
    said = "pool fast with 16 nodes"
    page.wait_for("the answer", lambda: said in page.text(), 60)
    answer = next(line for line in page.text().splitlines() if said in line)
    assert f"{MODELS[0]} at " in answer
    assert f"{MODELS[0]} with TBT " in answer
    assert len(fleet.units) == sum(POOLS.values())


def test_keys__some_get_more__shares_are_the_apis(page: Page, fleet: SimulatedFleet) -> None:
    go(page, "keys")
    page.wait_for("the keys", lambda: "notebook" in page.text(), 20)
    api = told(fleet, "keys")
    assert page.text("[data-field=jain_index]") == f"{api['jain_index']:.2f}"
    shares = {k["figures"]["name"]: k["share"] for k in api["keys"]}
    for name, share in shares.items():
        shown = page.text(f"[data-key={name}] [data-field=share]")
        assert shown == ("" if share is None else f"{100 * share:.1f} %")
