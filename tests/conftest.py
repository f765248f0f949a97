import gc
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from long_tests import LEFT_TO_CI, LONG, holds_long, is_all_among, is_left_to_ci, is_long, is_of_part, is_of_turn
from source_trees import keep_trees

from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint

if TYPE_CHECKING:
    from execnet import XSpec
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# A loaded machine must not fail a property; a test that hangs is pytest-timeout's to end. The same examples every time:
# a change fails for what it did, not for what a search found that day. `--hypothesis-profile search` searches.
try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a bare machine with a GPU, whose tests hold no properties
    pass
else:
    settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=240)
    settings.register_profile("muxfleet", settings.get_profile("search"), derandomize=True, max_examples=100)
    settings.load_profile("muxfleet")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests stand in files of their own. Others of this folder hold no doctests either: pytest, which looks for some,
    would import what only some runs have packages for. tests/k8s needs packages and tools that only `make test-k8s`
    installs.
    """
    asked_for = config.getoption("markexpr") or ""
    of_others = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    left_out = of_others or (collection_path.name == "k8s" and "k8s" not in asked_for)
    return True if left_out or _has_nothing_of(asked_for, collection_path, config) else None


def _has_nothing_of(asked_for: str, path: Path, config: pytest.Config) -> bool:
    """Says of a file that none of its tests would be kept: each process would import what it imports for nothing."""
    name = path.relative_to(config.rootpath).as_posix() if path.is_relative_to(config.rootpath) else ""
    if asked_for.startswith("not long"):
        return is_all_among(name, LONG) or ("not ci" in asked_for and is_all_among(name, LEFT_TO_CI))
    return asked_for == "long" and path.suffix == ".py" and not holds_long(name)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[object]:
    """Tests hold no doctests: nothing looks for them there."""
    return [file for file in (yield) if type(file) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Spares the search for garbage among some million objects that modules and tests are made of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling | None":
    from fleets_beside_files import FleetsBesideFiles

    return FleetsBesideFiles(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: "Sequence[XSpec]") -> None:
    """Not where a GPU is: what asks for it cannot be forked."""
    from forked_workers import fork_workers

    if not Path("/dev/nvidiactl").exists():
        fork_workers(config.pluginmanager.get_plugin("session"), specs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=int, metavar="N", help="only the files of part N of the longest tests")
    parser.addoption("--turn", type=int, metavar="N", help="of the tests that are left to CI those of day N only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what `make test` leaves out. Fleets take longest: processes that share the tests begin with them."""
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
        if is_left_to_ci(item.nodeid):
            item.add_marker(pytest.mark.ci)
    if (part := config.getoption("part")) is not None:
        items[:] = [item for item in items if is_of_part(item.nodeid, part)]
    if (turn := config.getoption("turn")) is not None:
        items[:] = [item for item in items if not is_left_to_ci(item.nodeid) or is_of_turn(item.nodeid, turn)]
    if hasattr(config, "workerinput"):
        from fleets_beside_files import starts_fleets

        items.sort(key=lambda item: not starts_fleets(item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def one_trust_store() -> Iterator[None]:
    """Each HTTP client would read a hundred certificates anew, most of them to ask a server without TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="module", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No fleet of a test goes on where another's ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def syntax_trees() -> None:
    """Those of source_trees.py are kept for all tests that hold sources to rules, which one process runs."""
    keep_trees()


@pytest.fixture(scope="session")
def demo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The demo's three checkpoints, written once per session: name -> folder."""
    root = tmp_path_factory.mktemp("demo-checkpoints")
    folders = {name: root / name for name in DEMO_SHAPES}
    for seed, (name, folder) in enumerate(folders.items()):
        write_random_checkpoint(folder, DEMO_SHAPES[name], seed)
    return folders
