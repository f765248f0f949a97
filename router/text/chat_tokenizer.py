"""A tokenizer as its files describe it: read without transformers where they say all, else through it.

To import transformers takes a second and 46 MiB.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tokenizers import Tokenizer

from pdmux_actor.errors import ModelLoadError
from router.text.characters import characters_per_token
from router.text.checkpoint_modules import (
    MODULE_FILES,
    NOT_DECLARED,
    RerankerHead,
    declares_embeddings,
    reranker_head,
    unserved_embeddings,
)
from router.text.shared_tokenizers import SharedTokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FILES = (
    "additional_chat_templates/*",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    *MODULE_FILES,
)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Those that transformers' Qwen2Tokenizer sets by itself where nothing is said.
_QWEN2_NAMED = frozenset({"bos_token", "eos_token", "unk_token", "pad_token"})
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
# Keys of a tokenizer_config.json that are read here, and those that change neither tokens nor templates.
_READ = frozenset({*_NAMED, *_EXTRA, "added_tokens_decoder", "chat_template", "response_template", "tokenizer_class"})
_INERT = frozenset(
    {
        "add_bos_token",  # transformers leaves both to tokenizer.json where there is one
        "add_eos_token",
        "backend",
        "clean_up_tokenization_spaces",
        "errors",
        "is_local",
        "local_files_only",
        "model_input_names",
        "model_max_length",
        "name_or_path",
        "padding_side",
        "processor_class",
        "truncation_side",
    }
)
_INERT_UNLESS_SET = frozenset({"add_prefix_space", "split_special_tokens"})
_CLASSES = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
_QWEN2_CLASSES = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
# Of these, whatever class is named, transformers makes another tokenizer of the file, or takes another file.
_OTHERWISE = frozenset(
    {
        "hyperclovax_vision_v2",
        "ministral",
        "ministral3",
        "mistral",
        "mistral3",
        "mistral_large4",
        "mixtral",
        "pixtral",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen4_exp",
        "siglip2",
        "voxtral",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTokenizer:
    """`chat_template`: one, or several by name. `named_tokens` are special tokens by what templates call them,
    `special_tokens` all of them. `digest` is that of the file whose models share `backend`; "": it is this model's.
    `characters_per_token`, `unserved_embeddings` and `declares_embeddings` as the functions of those names say,
    `reranker` as `reranker_head`.
    """

    backend: Tokenizer
    characters_per_token: int | None
    chat_template: str | Mapping[str, str] | None
    named_tokens: Mapping[str, str]
    special_tokens: Sequence[str]
    response_template: Mapping[str, Any] | None = None
    digest: str = ""
    reranker: RerankerHead | str = NOT_DECLARED
    unserved_embeddings: str = ""
    declares_embeddings: bool = False


def load_chat_tokenizer(source: str, revision: str | None, shared: SharedTokenizers) -> ChatTokenizer:
    """Slow: reads files, may download, may import transformers. Raises whatever a broken tokenizer provokes."""
    folder = Path(source) if Path(source).is_dir() else _downloaded(source, revision)
    read = None if folder is None else _read(folder, shared)
    tokenizer = _by_transformers(source, revision) if read is None else read
    if folder is None:
        return tokenizer
    return replace(
        tokenizer,
        reranker=reranker_head(folder),
        unserved_embeddings=unserved_embeddings(folder),
        declares_embeddings=declares_embeddings(folder),
    )


def _downloaded(source: str, revision: str | None) -> Path | None:
    """None: it cannot be had; transformers says why."""
    from pdmux_actor.models.hub_snapshot import downloaded  # brings tqdm, which a folder does not need

    try:
        return downloaded(source, source, revision, _FILES)
    except ModelLoadError:
        return None


def _read(folder: Path, shared: SharedTokenizers) -> ChatTokenizer | None:
    """None: its files leave to transformers what to make of them."""
    if not (folder / "tokenizer.json").is_file() or not (folder / "tokenizer_config.json").is_file():
        return None
    config = _json(folder / "tokenizer_config.json")
    unset = {name for name in _INERT_UNLESS_SET if not config.get(name)}
    if config.get("tokenizer_class") not in _CLASSES | _QWEN2_CLASSES or not config.keys() <= _READ | _INERT | unset:
        return None
    model = _json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if model.get("model_type") in _OTHERWISE or "model_name" in model:
        return None
    legacy = ("special_tokens_map.json", "added_tokens.json")
    if "added_tokens_decoder" not in config and any((folder / name).is_file() for name in legacy):
        return None
    named = {name: config[name] for name in _NAMED if config.get(name) is not None}
    extra = next((config[name] for name in _EXTRA if config.get(name)), ())
    tokenizer = shared.of(folder / "tokenizer.json")
    declared = config.get("added_tokens_decoder") or {}
    if not _holds(tokenizer.added_tokens, [*named.values(), *extra], declared):
        return None
    is_qwen2 = config["tokenizer_class"] in _QWEN2_CLASSES or model.get("model_type") == "qwen2"
    all_or_none = len(declared) in (0, len(tokenizer.added_tokens))
    if is_qwen2 and not (config.keys() >= _QWEN2_NAMED and tokenizer.is_qwen2 and all_or_none):
        return None
    return ChatTokenizer(
        backend=tokenizer.backend,
        characters_per_token=tokenizer.characters_per_token,
        digest=tokenizer.digest,
        chat_template=_chat_template(folder, config.get("chat_template")),
        named_tokens=named,
        special_tokens=tuple(dict.fromkeys([*named.values(), *extra])),
        response_template=config.get("response_template"),
    )


def _holds(
    added: Collection[Mapping[str, Any]], special: Sequence[object], declared: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Says whether tokenizer.json has all tokens that tokenizer_config.json declares, as it declares them: transformers
    adds those that are missing.
    """
    known = {token["content"] for token in added if token["special"]}
    by_id = {str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in added}
    are_special = all(isinstance(token, str) and token in known for token in special)
    return are_special and all(by_id.get(token_id) == token for token_id, token in declared.items())


def _chat_template(folder: Path, configured: str | list[dict[str, str]] | None) -> str | Mapping[str, str] | None:
    """Files come before what the config says."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    found = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    if not found:
        if not isinstance(configured, list):
            return configured
        return {entry["name"]: entry["template"] for entry in configured}
    return found["default"] if found.keys() == {"default"} else found


def _by_transformers(source: str, revision: str | None) -> ChatTokenizer:
    from transformers import AutoTokenizer

    made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, revision=revision)
    backend = made.backend_tokenizer  # a slow tokenizer has none; every architecture we serve has a fast one
    return ChatTokenizer(
        backend=backend,
        characters_per_token=characters_per_token(backend),
        chat_template=made.chat_template,
        named_tokens=made.special_tokens_map,
        special_tokens=made.all_special_tokens,
        response_template=getattr(made, "response_template", None),
    )


def _json(file: Path) -> dict[str, Any]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
