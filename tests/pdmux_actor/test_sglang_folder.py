"""Where SGLang's process has its sockets."""

import tempfile
from pathlib import Path

import pytest

from pdmux_actor.backends.sglang.plugin_line import PluginLine
from pdmux_actor.backends.sglang.process import keep_socket_paths_short


@pytest.mark.parametrize("deep", [20, 66, 90])
async def test_process__temporary_folder_is_deep__its_plugin_can_be_heard_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: int
) -> None:
    place = Path("/tmp") / tmp_path.name.ljust(deep - len("/tmp/"), "x")[: deep - len("/tmp/")]
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    try:
        keep_socket_paths_short()
        with tempfile.TemporaryDirectory(prefix="muxfleet-sglang-") as folder:
            line = PluginLine(Path(folder) / "plugin.sock", lambda load: None)
            await line.listen()
            await line.close()
        assert (Path(folder).parent == place) == (deep == 20)
    finally:
        place.rmdir()
