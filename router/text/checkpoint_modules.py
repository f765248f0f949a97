"""Knows what sentence-transformers' files of a checkpoint say: how it judges documents, what its embeddings are."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

MODULE_FILES = (
    "modules.json",
    "*_LogitScore/config.json",
    "*_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
_POOLING = ".Pooling"
_HEAD = ".LogitScore"  # how the types of modules end, wherever the library keeps its class
# How sentence-transformers names them: whether the score becomes a probability.
_ACTIVATIONS: Mapping[str, bool] = MappingProxyType(
    {"torch.nn.modules.activation.Sigmoid": True, "torch.nn.modules.linear.Identity": False}
)
NOT_DECLARED = (
    "its checkpoint has no LogitScore module (modules.json of sentence-transformers 5.4 or newer); name a model whose "
    "checkpoint has one, or a revision of this one that has"
)
_MODE = "pooling_mode"
_SERVED_MODES = ("lasttoken",)
_SERVED_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "LogitScore"})
ReadT = TypeVar("ReadT")


class RerankerHead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A document's score is the logit of `true_token` behind it less that of `false_token`, where there is one, and
    with `is_probability` its logistic function. `instruction` is the one that goes without saying; "": none does.
    """

    true_token: int
    false_token: int | None
    is_probability: bool
    adds_generation_prompt: bool
    instruction: str = ""

    @property
    def scored_tokens(self) -> tuple[int, ...]:
        return (self.true_token,) if self.false_token is None else (self.true_token, self.false_token)


class _Module(msgspec.Struct):
    type: str
    path: str


class _LogitScore(msgspec.Struct):
    true_token_id: int
    false_token_id: int | None = None


class _CrossEncoder(msgspec.Struct):
    activation_fn: str | None = None
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None


class _Processing(msgspec.Struct):
    chat_template: dict[str, Any] = {}


class _Transformer(msgspec.Struct):
    processing_kwargs: _Processing = msgspec.field(default_factory=_Processing)


def unserved_embeddings(folder: Path) -> str:
    """Says why embeddings as the engine makes them, of the last token, are not those of the checkpoint; "": they are,
    or it does not say what they would be.
    """
    try:
        modules = _read(folder / "modules.json", list[_Module], [])
        for module in modules:
            kind = module.type.rpartition(".")[2]
            if kind == "Pooling" and (modes := _pooling_modes(folder / module.path / "config.json")) != _SERVED_MODES:
                return f"its checkpoint pools by {' and '.join(modes)} ({module.path}/config.json), served is lasttoken"
            if kind not in _SERVED_MODULES:
                return f"its checkpoint computes {kind} behind the decoder (modules.json), which is not served"
    except ValueError:
        pass  # it says nothing that can be read
    return ""


def declares_embeddings(folder: Path) -> bool:
    """Returns whether the checkpoint says that it is made for embeddings, of the kind that are served."""
    try:
        modules = _read(folder / "modules.json", list[_Module], [])
    except ValueError:
        return False
    return any(module.type.endswith(_POOLING) for module in modules) and not unserved_embeddings(folder)


def _pooling_modes(file: Path) -> tuple[str, ...]:
    """Raises ValueError."""
    config = _read(file, dict[str, Any])
    modes = config.get(_MODE)
    if modes is None:  # before 5.4: a key for every mode
        prefix = f"{_MODE}_"
        modes = [name.removeprefix(prefix) for name, is_used in config.items() if name.startswith(prefix) and is_used]
    return tuple(map(str, modes if isinstance(modes, list) else [modes])) or ("mean",)


def reranker_head(folder: Path) -> RerankerHead | str:
    """A text says why the model is no reranker: other requests to it go on whatever these files say."""
    try:
        return _declared(folder) or NOT_DECLARED
    except ValueError as error:
        return str(error)


def _declared(folder: Path) -> RerankerHead | None:
    """Raises ValueError: a file cannot be read, or asks for an activation that is not known; names it."""
    modules = _read(folder / "modules.json", list[_Module], [])
    path = next((module.path for module in modules if module.type.endswith(_HEAD)), None)
    if path is None:
        return None
    head = _read(folder / path / "config.json", _LogitScore)
    whole = _read(folder / "config_sentence_transformers.json", _CrossEncoder, _CrossEncoder())
    template = _read(folder / "sentence_bert_config.json", _Transformer, _Transformer()).processing_kwargs.chat_template
    activation = whole.activation_fn or "torch.nn.modules.activation.Sigmoid"  # the library's own default
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"config_sentence_transformers.json: activation_fn {activation!r} is not known; "
            f"known are {', '.join(_ACTIVATIONS)}"
        )
    return RerankerHead(
        true_token=head.true_token_id,
        false_token=head.false_token_id,
        is_probability=_ACTIVATIONS[activation],
        adds_generation_prompt=bool(template.get("add_generation_prompt", False)),
        instruction=whole.prompts.get(whole.default_prompt_name or "", ""),
    )


def _read(file: Path, kind: type[ReadT], default: ReadT | None = None) -> ReadT:
    if default is not None and not file.is_file():
        return default
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, ValueError) as error:  # msgspec's are ValueErrors, too
        raise ValueError(f"{file.parent.name}/{file.name} does not say how documents are scored: {error}") from error
