"""Downloads from a hub of the test's own. The library reads its environment when it is imported: each is a process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fake_hub import COMMIT, FakeHub, fake_hub
from forked_programs import ForkedPrograms, forked_programs

from pdmux_actor.models.hub_snapshot import DownloadBar

Downloaded = Callable[..., Mapping[str, Any]]
REPO = "some-org/some-model"
TOKEN = "hf_" + "x" * 34
WEIGHTS = bytes(range(256)) * 20_000
FILES = {
    "config.json": b"{}",
    "model-1.safetensors": WEIGHTS,
    "model-2.safetensors": WEIGHTS[::-1],
    "pytorch_model.bin": b"not wanted",
    "consolidated.safetensors": b"the same once more",
    "original/model.safetensors": b"and once more",
}

IMPORTS = "import sys, httpx, tqdm.auto, deploy.fleet_file.model_section\nassert 'huggingface_hub' not in sys.modules"
PROGRAM = """
import json, sys
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import resolve_checkpoint
told = []
try:
    folder = str(resolve_checkpoint("m", sys.argv[1], None, lambda done, total: told.append((done, total))))
    print(json.dumps({"folder": folder, "told": told}))
except ModelLoadError as error:
    print(json.dumps({"reason": error.reason, "remedy": error.remedy}))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub(REPO, FILES, token=TOKEN) as serving:
        yield serving


SHAPE_PROGRAM = """
import json, sys
from deploy.errors import SourceNotFound
from deploy.fleet_file.model_specs import read_source_json
try:
    print(json.dumps(read_source_json("m", sys.argv[1], None, "config.json")))
except SourceNotFound as error:
    print(json.dumps({"reason": str(error)}))
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    with forked_programs(IMPORTS) as forked:
        yield forked


@pytest.fixture
def downloaded(hub: FakeHub, programs: ForkedPrograms) -> Downloaded:
    """What a program says that asks the hub for REPO. `home` is where it keeps what came."""

    def downloaded(home: Path, program: str = PROGRAM, url: str = hub.url, **environment: str) -> Mapping[str, Any]:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        of_hub = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
        found: Mapping[str, Any] = json.loads(
            programs.run(program, REPO, environment={**kept, **of_hub, **environment})
        )
        return found

    return downloaded


def test_resolve_checkpoint__hub_id__is_downloaded_under_hf_home_and_tells_how_far_it_is(
    tmp_path: Path, downloaded: Downloaded
) -> None:
    found = downloaded(tmp_path)

    folder = Path(found["folder"])
    assert folder.is_relative_to(tmp_path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: FILES[name] for name in ("config.json", "model-1.safetensors", "model-2.safetensors")
    }
    done = [done for done, _ in found["told"]]
    assert done == sorted(done)
    assert found["told"][-1] == [2 * len(WEIGHTS) + 2] * 2
    assert COMMIT in found["folder"]


def test_resolve_checkpoint__connection_is_cut__says_what_to_check(
    hub: FakeHub, tmp_path: Path, downloaded: Downloaded
) -> None:
    """Else its error, which is none of the library's own, would end the unit with all its models."""
    hub.cuts = True

    told = downloaded(tmp_path)

    assert "the download failed: Server disconnected" in told["reason"]
    assert "the network" in told["remedy"]


def test_shape_of_a_model__connection_is_cut__is_one_line_after_one_try(
    hub: FakeHub, tmp_path: Path, downloaded: Downloaded
) -> None:
    """The library would try for half a minute, and fill the terminal with it."""
    hub.cuts = True

    told = downloaded(tmp_path, SHAPE_PROGRAM)

    assert len([path for _, path, _ in hub.asked if path.endswith("config.json")]) == 1
    assert told["reason"].startswith(
        f"model 'm': no checkpoint at {REPO}: its config.json cannot be fetched from {hub.url}"
    )
    assert told["reason"].endswith("HF_ENDPOINT and HF_HOME, or make `source` a local folder")
    assert "\n" not in told["reason"]


def test_shape_of_a_model__of_the_hub__is_fetched(tmp_path: Path, downloaded: Downloaded) -> None:
    assert downloaded(tmp_path, SHAPE_PROGRAM) == {}


def test_resolve_checkpoint__wrong_token__says_what_to_check(tmp_path: Path, downloaded: Downloaded) -> None:
    found = downloaded(tmp_path, HF_TOKEN="hf_" + "y" * 34)

    assert REPO in found["reason"]
    assert "HF_TOKEN" in found["remedy"]


def test_resolve_checkpoint__download_breaks_off__goes_on_where_it_stood(
    tmp_path: Path, downloaded: Downloaded
) -> None:
    content = WEIGHTS * 5  # the library keeps what came in pieces of 10 MiB
    with fake_hub(REPO, {"model.safetensors": content}, token=TOKEN) as hub:
        hub.break_off.add("model.safetensors")

        found = downloaded(tmp_path, url=hub.url)

        assert (Path(found["folder"]) / "model.safetensors").read_bytes() == content
        ranges = [asked for method, path, asked in hub.asked if method == "GET" and "/resolve/" in path]
    assert ranges == [None, "bytes=10485760-"]


FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))\n"


def test_resolve_checkpoint__disk_full__says_where_to_make_room(tmp_path: Path, downloaded: Downloaded) -> None:
    told = downloaded(tmp_path, FULL_DISK + PROGRAM)

    assert told["reason"].startswith(f"'{REPO}' cannot be downloaded into {tmp_path}/hub: File too large")
    assert told["remedy"] == "make room there, or set HF_HOME to a folder of yours with room"


def test_resolve_checkpoint__cache_cannot_be_written__says_which_and_what_to_set(
    tmp_path: Path, downloaded: Downloaded
) -> None:
    (tmp_path / "file").write_text("")

    told = downloaded(tmp_path / "file" / "home")

    assert f"{tmp_path}/file/home/hub: Not a directory" in told["reason"]
    assert "HF_HOME" in told["remedy"]


def test_resolve_checkpoint__offline__takes_what_is_there_and_asks_nobody(
    hub: FakeHub, tmp_path: Path, downloaded: Downloaded
) -> None:
    there = downloaded(tmp_path)
    hub.asked.clear()

    found = downloaded(tmp_path, HF_HUB_OFFLINE="1")
    absent = downloaded(tmp_path / "empty", HF_HUB_OFFLINE="1")

    assert found["folder"] == there["folder"]
    assert REPO in absent["reason"]
    assert "local folder" in absent["remedy"]
    assert not hub.asked


def test_download_bar__files_come_on_two_threads__never_tells_less_than_before() -> None:
    told: list[int] = []
    late = Thread(target=lambda: bar.update(5))

    def tell(done: int, total: int) -> None:
        if done == 5:
            late.start()
            late.join(0.2)  # it would tell of 10 now, if it might
        told.append(done)

    bar = DownloadBar(tell, unit="B", total=10)
    bar.update(5)
    late.join(10)

    assert told == [5, 10]
