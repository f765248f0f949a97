"""The tokenizer of a checkpoint, for turning tokens into text."""

from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import resolve_checkpoint
from pdmux_actor.models.demo_tokenizer import SHAPE_ONLY_VOCABULARY, build_demo_tokenizer, is_shape_only
from pdmux_actor.models.load_progress import OnProgress, ignore_progress
from pdmux_actor.serving.detokenizer import Vocabulary


class CheckpointNamed(Protocol):
    """A ModelAssignment, or the command that came of one."""

    @property
    def model(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def revision(self) -> str | None: ...


def load_vocabulary(assignment: CheckpointNamed, on_download: OnProgress = ignore_progress) -> Vocabulary:
    """Slow: reads files, may download, and says how far that is.

    Raises:
        ModelLoadError: the checkpoint has no usable tokenizer.
    """
    folder = resolve_checkpoint(assignment.model, assignment.source, assignment.revision, on_download)
    if is_shape_only(folder):  # a simulated unit says something all the same; a real one finds no weights
        return Vocabulary(build_demo_tokenizer(SHAPE_ONLY_VOCABULARY))
    path = folder / "tokenizer.json"
    try:
        return Vocabulary(Tokenizer.from_file(str(path)) if path.exists() else _converted(folder))
    except Exception as error:  # tokenizers raises plain Exception for a broken file
        raise ModelLoadError(
            model=assignment.model,
            reason=f"{folder} has no usable tokenizer: {type(error).__name__}: {error}",
            remedy="add its tokenizer.json",
        ) from error


def _converted(folder: Path) -> Tokenizer:
    """A sentencepiece model or GPT-2 files, as a fast tokenizer."""
    from transformers import AutoTokenizer  # takes seconds to import and few checkpoints need it

    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    return tokenizer
