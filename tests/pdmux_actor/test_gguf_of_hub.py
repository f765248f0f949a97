"""GGUF files from a hub of the test's own. Its library reads its environment when it is imported: each is a process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from fake_hub import FakeHub, fake_hub
from forked_programs import ForkedPrograms, forked_programs
from tiny_gguf import write_tiny_gguf

REPO = "some-org/tiny-GGUF"
TOKEN = "hf_" + "x" * 34
IMPORTS = "import deploy.fleet_file.model_section, gguf, httpx, sys, torch\nassert 'huggingface_hub' not in sys.modules"
PROGRAM = """
import json, sys
from deploy.errors import SourceNotFound
from deploy.fleet_file.model_specs import read_model_spec
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import resolve_checkpoint
from pdmux_actor.models.gguf_files.file_tensors import gguf_tensors
answers = []
for source in sys.argv[1:]:
    try:
        spec = read_model_spec("m", source, None, None)
        folder = resolve_checkpoint("m", source, None)
        tensors = gguf_tensors("m", folder, 32, None)
        answers.append({"weights": spec.weights, "file": tensors.path.name, "tensors": sorted(tensors.names),
                        "folder": sorted(file.name for file in folder.iterdir())})
    except (ModelLoadError, SourceNotFound) as error:
        answers.append({"told": str(error)})
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    folder = tmp_path_factory.mktemp("made")
    for kind in ("Q4_0", "Q8_0"):
        write_tiny_gguf(folder / f"tiny-{kind}.gguf", gguf.GGMLQuantizationType[kind])
    write_tiny_gguf(folder / "tiny-F16.gguf", gguf.GGMLQuantizationType.F16, tensors_each=1)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    beside = {"mmproj-tiny-Q8_0.gguf": b"not wanted", "other-Q4_0.gguf": files["tiny-Q4_0.gguf"], "README.md": b""}
    with fake_hub(REPO, {**files, **beside}, token=TOKEN) as serving:
        yield serving


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkedPrograms]:
    with forked_programs(IMPORTS) as forked:
        yield forked


@pytest.fixture
def found(hub: FakeHub, processes: ForkedPrograms, tmp_path: Path) -> Callable[..., list[Mapping[str, Any]]]:
    def found(*sources: str, **environment: str) -> list[Mapping[str, Any]]:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        of_hub = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN}
        answers: list[Mapping[str, Any]] = json.loads(
            processes.run(PROGRAM, *sources, environment={**kept, **of_hub, **environment})
        )
        return answers

    return found


def given(hub: FakeHub) -> list[str]:
    return [path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path]


def test_gguf_of_hub__by_type_or_name__is_the_one_file_of_the_repository_that_is_fetched(
    hub: FakeHub, found: Callable[..., list[Mapping[str, Any]]]
) -> None:
    hub.asked.clear()

    by_type, by_name = found(f"{REPO}:q8_0", f"{REPO}/tiny-Q4_0.gguf")

    assert (by_type["file"], by_type["weights"]) == ("tiny-Q8_0.gguf", "int8")
    assert (by_name["file"], by_name["weights"]) == ("tiny-Q4_0.gguf", "int4_group32")
    assert {"config.json", "tokenizer.json", "model.gguf"} <= set(by_type["folder"])
    assert given(hub) == ["tiny-Q8_0.gguf", "tiny-Q4_0.gguf"]

    hub.asked.clear()
    assert found(f"{REPO}:q8_0", HF_HUB_OFFLINE="1") == [by_type]
    assert found(f"{REPO}:q8_0") == [by_type]
    assert not hub.asked


def test_gguf_of_hub__in_several_files__are_fetched_together(
    hub: FakeHub, found: Callable[..., list[Mapping[str, Any]]]
) -> None:
    hub.asked.clear()

    (answer,) = found(f"{REPO}:F16")

    assert answer["file"] == "tiny-F16-00001-of-00002.gguf"
    assert answer["tensors"] == ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]
    assert sorted(given(hub)) == ["tiny-F16-00001-of-00002.gguf", "tiny-F16-00002-of-00002.gguf"]


def test_gguf_of_hub__is_not_there_or_is_one_of_several__is_told_with_what_there_is(
    hub: FakeHub, found: Callable[..., list[Mapping[str, Any]]]
) -> None:
    sources = (f"{REPO}:Q4_0", f"{REPO}:Q2_K", f"{REPO}/tiny-Q2_K.gguf", "some-org/other:Q4_0")
    several, none, no_file, no_repository = (answer["told"] for answer in found(*sources))

    assert f"2 files are of that type; write {REPO}/FILE with one of other-Q4_0.gguf, tiny-Q4_0.gguf" in several
    for told in (none, no_file):
        assert "there is no such file" in told
        assert "tiny-Q8_0.gguf" in told
    assert f"check the id, the revision, the network to {hub.url} and HF_TOKEN" in no_repository
