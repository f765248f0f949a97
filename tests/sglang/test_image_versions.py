"""The SGLang image's list of versions against what SGLang itself asks for. `MUXFLEET_IMAGES=sglang` builds the image
(tests/k8s/test_packaging_files.py), where there is room for it.
"""

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IMAGE = {  # python3 of the image's base
    "python_version": "3.11",
    "python_full_version": "3.11.2",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


def test_image__each_package_that_sglang_asks_for__is_in_its_list_in_a_version_that_sglang_takes() -> None:
    lines = (ROOT / "constraints-sglang-cuda.txt").read_text().splitlines()
    pins = {canonicalize_name(name): v for name, _, v in (n.partition("==") for n in lines if not n.startswith("#"))}
    wanted = [Requirement(text) for text in metadata.requires("sglang") or ()]
    here = [r for r in wanted if r.marker is None or r.marker.evaluate(IMAGE)]

    assert pins["sglang"] == metadata.version("sglang"), "make test-sglang runs another SGLang"
    assert len(here) > 50
    assert not [
        str(r) for r in here if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0"), prereleases=True)
    ]
