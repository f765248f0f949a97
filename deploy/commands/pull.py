"""muxfleet pull"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub.utils.tqdm import disable_progress_bars

from deploy.commands.terminal import terminal
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import read_fleet_file
from pdmux_actor.models.checkpoint import resolve_checkpoint

_FLEET_FILES = (".yaml", ".yml", ".json")


def pull(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Hugging Face ids, or fleet files: all their models.")
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the ids.")] = None,
) -> None:
    """Download models into Hugging Face's cache of this machine, where its units look for them. What is there is not
    fetched again, and what broke off goes on where it stood.

    Example: muxfleet pull Qwen/Qwen2.5-0.5B-Instruct
    """
    console = terminal()
    if not console.is_terminal:  # the library draws its bars wherever standard error leads
        disable_progress_bars()
    for source, at_revision in _asked(models, revision):
        folder = resolve_checkpoint(source, source, at_revision)
        console.print(f"{source}: {_size(_bytes_in(folder))} in {folder}", soft_wrap=True)


def _asked(models: Sequence[str], revision: str | None) -> list[tuple[str, str | None]]:
    """Source and revision, each once."""
    asked: dict[tuple[str, str | None], None] = {}
    for model in models:
        if not model.strip():
            raise OptionNotUsable(option="MODEL", value=repr(model), remedy="name a Hugging Face id, or a fleet file")
        if not model.endswith(_FLEET_FILES):
            asked[model, revision] = None
            continue
        if revision is not None:
            raise OptionNotUsable(option="--revision", value=revision, remedy=f"{model} says which revisions it wants")
        for section in read_fleet_file(Path(model)).models:
            asked[section.source, section.revision] = None
    return list(asked)


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
