"""Makes a folder in Hugging Face layout of a GGUF file, for all who read such folders; the weights stay in the file."""

import hashlib
import json
import tempfile
from pathlib import Path

from huggingface_hub import constants

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.gguf_files.described_config import described_config, end_token_ids
from pdmux_actor.models.gguf_files.file_parts import parts_of
from pdmux_actor.models.gguf_files.opened_file import open_gguf

WEIGHTS_FILE = "model.gguf"
_SUFFIX = ".gguf"
_VERSION = 1  # of what is written; another one makes folders anew


def is_gguf(source: str) -> bool:
    return source.endswith(_SUFFIX)


def layout_folder(model: str, file: Path) -> Path:
    """Writes config.json, the tokenizer and a link to `file` beside Hugging Face's cache, once for a file as it is.

    Seconds when it is new: imports transformers, which has the conversion of tokenizers.

    Raises:
        ModelLoadError: the file is missing or broken, or describes what is not served.
    """
    try:
        resolved = file.resolve(strict=True)
        # Hugging Face's cache links names to blobs: the name says which files belong together.
        file = parts_of(resolved if is_gguf(resolved.name) else file.absolute())[0]
        statuses = [part.stat() for part in parts_of(file)]
    except OSError as error:
        raise ModelLoadError(
            model=model,
            reason=f"file {error.filename or file} cannot be read: {error.strerror}",
            remedy="correct `source`, and have all files of a split checkpoint in one folder",
        ) from error
    times = ":".join(f"{status.st_size}:{status.st_mtime_ns}" for status in statuses)
    identity = f"{_VERSION}:{file}:{times}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder = Path(constants.HF_HOME) / "muxfleet" / "gguf" / f"{file.stem}-{digest}"
    if folder.is_dir():
        return folder
    opened = open_gguf(model, file)
    config = described_config(model, opened)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _write_tokenizer(model, file, made)
            _write_json(made / "config.json", config)
            _write_json(made / "generation_config.json", {"eos_token_id": end_token_ids(opened)})
            (made / WEIGHTS_FILE).symlink_to(file)
            if not folder.is_dir():  # another process may have been faster
                made.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise ModelLoadError(
                model=model,
                reason=f"{folder.parent} cannot be written: {error.strerror or error}",
                remedy="set HF_HOME to a folder of yours",
            ) from error
    return folder


def _write_tokenizer(model: str, file: Path, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name)
        tokenizer.save_pretrained(str(folder))
    except OSError:
        raise
    except Exception as error:  # whatever a vocabulary that it does not know provokes
        raise ModelLoadError(
            model=model,
            reason=f"{file} has no tokenizer that transformers can read: {type(error).__name__}: {error}",
            remedy="convert it to a folder with a tokenizer.json, or use the checkpoint it was made of",
        ) from error


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")
