"""What axe-core says of a page."""

from pathlib import Path

from chromium import Page

AXE = Path(__file__).parents[2] / ".tools" / "console" / "node_modules" / "axe-core" / "axe.min.js"


def serious_findings(page: Page) -> list[str]:
    page.run(AXE.read_text() + "\nwindow.axe = axe;")
    violations = page.run("return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes'][:3]]}"
        for v in violations
        if v["impact"] in ("serious", "critical")
    ]
