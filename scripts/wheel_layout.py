"""How a wheel lays out the packages: below `muxfleet/`, where no other distribution puts anything.

The repository's folders, and an editable install of them, stay as they are: docs/adr/0007-one-name-in-site-packages.md.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

PACKAGES = ("traces", "profiler", "placement", "pdmux_actor", "router", "deploy")


class PackagesInsideMuxfleet(build_py):  # type: ignore[misc]  # setuptools has no types
    """setuptools' build_py, named in pyproject.toml."""

    def run(self) -> None:
        # What an earlier build left there would go into the wheel.
        if not self.editable_mode:
            for name in ("muxfleet", *PACKAGES):
                shutil.rmtree(Path(self.build_lib) / name, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for name in PACKAGES:
                (Path(self.build_lib) / name).rename(Path(self.build_lib) / "muxfleet" / name)
