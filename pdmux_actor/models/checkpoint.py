"""A checkpoint folder in Hugging Face layout, without its weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.file_parts import parts_of
from pdmux_actor.models.gguf_files.hub_files import gguf_file
from pdmux_actor.models.gguf_files.layout_folder import is_gguf, layout_folder
from pdmux_actor.models.hub_snapshot import downloaded
from pdmux_actor.models.load_progress import OnProgress

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def resolve_checkpoint(model: str, source: str, revision: str | None, on_progress: OnProgress | None = None) -> Path:
    """The local folder of `source`: a folder as it is, that which describes a GGUF file, and of Hugging Face either
    through the local cache or a download, which goes on where it broke off. Without `on_progress` the library draws its
    own bars.

    Raises:
        ModelLoadError: no such folder, or the hub does not give it.
    """
    try:
        folder = Path(source).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name longer than any, the folder of a user who is not there
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ModelLoadError(
            model=model, reason=f"{source}: {reason}", remedy="correct `source`: a folder, or a Hugging Face id"
        ) from error
    if is_folder:
        return folder
    is_local = folder.is_absolute() or source.startswith((".", "~"))
    is_file_of_weights = is_gguf(source) and (folder.is_absolute() or folder.is_file())
    if folder.exists() and not is_file_of_weights:
        remedy = "name the folder that holds config.json, or a file that ends in .gguf"
        raise ModelLoadError(model=model, reason=f"{source} is a file", remedy=remedy)
    if is_local and not is_file_of_weights:
        raise ModelLoadError(
            model=model, reason=f"folder {source} does not exist", remedy="correct `source` or put the checkpoint there"
        )
    file = gguf_file(model, str(folder), revision, on_progress)
    return downloaded(model, source, revision, _FILES, on_progress) if file is None else layout_folder(model, file)


def files_of(source: str) -> frozenset[tuple[str, int]]:
    """Names and times of a folder's files, or of a GGUF file, to tell whether they have changed; none of a Hugging Face
    id, whose files never do, and of a folder that is gone or cannot be.
    """
    try:
        path = Path(source).expanduser()
        if is_gguf(source) and path.is_file():
            return frozenset((part.name, part.stat().st_mtime_ns) for part in parts_of(path))
        return frozenset((f.name, f.stat().st_mtime_ns) for f in path.iterdir())
    except (OSError, RuntimeError, ValueError):  # as in `resolve_checkpoint`, which says what is wrong
        return frozenset()


def read_json(model: str, folder: Path, name: str) -> Mapping[str, Any]:
    """Raises ModelLoadError if the file is missing, unreadable or not a JSON object."""
    path = folder / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(
            model=model, reason=f"{path} is missing", remedy="point `source` to a complete checkpoint in HF layout"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(
            model=model, reason=f"{path} cannot be read: {error}", remedy="copy or download the file again"
        ) from error
    if not isinstance(content, dict):
        raise ModelLoadError(
            model=model, reason=f"{path} holds no JSON object", remedy="copy or download the file again"
        )
    return content


def eos_token_ids(model: str, folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Every id that ends a sequence by config.json, generation_config.json or the tokenizer's `eos_token`."""
    ids = set(_ids(model, "config.json", config.get("eos_token_id")))
    if (folder / "generation_config.json").exists():
        generation = read_json(model, folder, "generation_config.json")
        ids.update(_ids(model, "generation_config.json", generation.get("eos_token_id")))
    ids.update(_tokenizer_eos(model, folder))
    return frozenset(ids)


def _ids(model: str, name: str, value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in items):
        raise ModelLoadError(
            model=model,
            reason=f"{name}: eos_token_id={value!r} is neither a number nor a list of numbers",
            remedy=f"correct eos_token_id in {name}",
        )
    return tuple(items)


def _tokenizer_eos(model: str, folder: Path) -> tuple[int, ...]:
    if not (folder / "tokenizer_config.json").exists() or not (folder / "tokenizer.json").exists():
        return ()
    eos = read_json(model, folder, "tokenizer_config.json").get("eos_token")
    content = eos.get("content") if isinstance(eos, dict) else eos
    if not isinstance(content, str):
        return ()
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001,RUF100 - the tokenizers library raises bare Exception
        raise ModelLoadError(
            model=model,
            reason=f"{folder / 'tokenizer.json'} cannot be read: {error}",
            remedy="copy or download the file again",
        ) from error
    token_id = tokenizer.token_to_id(content)
    return () if token_id is None else (token_id,)
