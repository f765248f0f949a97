"""Fetches GGUF files of Hugging Face."""

import glob
from collections.abc import Sequence
from pathlib import Path

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.file_parts import parts_of
from pdmux_actor.models.gguf_files.hub_source import NOWHERE, HubGguf, is_nowhere
from pdmux_actor.models.gguf_files.layout_folder import is_gguf
from pdmux_actor.models.hub_snapshot import cached_folder, downloaded, gguf_names
from pdmux_actor.models.load_progress import OnProgress

_NAMED = 8


def gguf_file(model: str, source: str, revision: str | None, on_progress: OnProgress | None = None) -> Path | None:
    """Returns the file of a source that is one, on this machine or on Hugging Face, of several the first; None: the
    source is something else. Blocks while it is downloaded; what the cache holds whole is not asked for again.

    Raises:
        ModelLoadError: Hugging Face does not give it, or has several or none that could be meant. An absolute path need
            not be there.
    """
    if is_nowhere(source):
        raise ModelLoadError(model=model, reason=f"source={source!r}", remedy=NOWHERE)
    hub = HubGguf.of(source)
    if hub is None or (is_gguf(source) and Path(source).is_file()):
        return Path(source) if is_gguf(source) else None
    return _cached(hub, revision) or _fetched(model, hub, revision, on_progress)


def _cached(hub: HubGguf, revision: str | None) -> Path | None:
    folder = cached_folder(hub.repository, revision)
    if folder is None:
        return None
    found = hub.meant(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
    is_whole = len(found) == 1 and all(part.is_file() for part in parts_of(folder / found[0]))
    return folder / found[0] if is_whole else None


def _fetched(model: str, hub: HubGguf, revision: str | None, on_progress: OnProgress | None) -> Path:
    names = gguf_names(model, hub.repository, revision)
    found = hub.meant(names)
    if len(found) != 1:
        raise _unclear(model, hub, found, names)
    parts = [glob.escape(str(part)) for part in parts_of(Path(found[0]))]
    return downloaded(model, hub.repository, revision, parts, on_progress) / found[0]


def _unclear(model: str, hub: HubGguf, found: Sequence[str], present: Sequence[str]) -> ModelLoadError:
    among = found or present
    if not among:
        reason = f"source={str(hub)!r}: {hub.repository} has no GGUF files"
        return ModelLoadError(model=model, reason=reason, remedy="name a repository that has some")
    problem = f"{len(found)} files are of that type" if found else "there is no such file"
    return ModelLoadError(
        model=model,
        reason=f"source={str(hub)!r}: {problem}",
        remedy=f"write {hub.repository}/FILE with one of {', '.join(among[:_NAMED])}{' ...' if among[_NAMED:] else ''}",
    )
