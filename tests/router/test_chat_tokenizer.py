"""Tokenizers and chat templates without transformers: they are its own, token by token and letter by letter."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_hub import fake_hub
from fake_unit import CHAT_TEMPLATE, write_byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer
from transformers.models.auto import tokenization_auto
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from pdmux_actor.models import demo_tokenizer
from pdmux_actor.models.demo_tokenizer import build_demo_tokenizer
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES
from router.text import chat_tokenizer
from router.text.calls import (
    EncodeChat,
    Encoded,
    EncodeText,
    LoadTokenizer,
    TokenizerFailed,
    TokenizerKey,
    TokenizerLoaded,
)
from router.text.chat_template import ChatTemplate
from router.text.chat_tokenizer import ChatTokenizer, load_chat_tokenizer
from router.text.lane import TextProcess
from router.text.shared_tokenizers import SharedTokenizers

HUB_TOKEN = "hf_" + "x" * 34
TEXTS = (
    "",
    "Hello, world!",
    "  naïve\n\tcafé 東京 🚀",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<eos>b",
    "<tool_call>e\u0301 ",
    "x" * 300,
)

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " What is 1 + 1? "},
    {"role": "assistant", "content": "2", "reasoning_content": "easy"},
    {"role": "user", "content": "Sure?", "name": None},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "sum", "arguments": {"of": [1, "é"]}}}],
    },
    {"role": "tool", "content": "2", "tool_call_id": "c"},
    {"role": "assistant", "content": "Two, then"},
]
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}, "strict": None}}]
TEMPLATES: Mapping[str, str] = {
    "demo": demo_tokenizer.CHAT_TEMPLATE,
    "refuses tools": CHAT_TEMPLATE,
    "blocks and spaces": "{%- for m in messages %}\n    {% if loop.first %}\n{{ bos_token }}\n    {% endif %}\n"
    "  [{{ m.role }}] {{ m.content | trim }}\n{%- endfor %}\n{% if add_generation_prompt %}>{% endif %}",
    "namespace": "{% set ns = namespace(last=0, self='x') %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}{{ ns.self }}{% for m in messages[::-1] %}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "private name": "{% set ns = namespace(_hidden=1) %}{{ messages[0].content }}",
    "tools": "{% if tools %}{{ tools | tojson(indent=2) }}{{ tools[0] | tojson }}{% endif %}{% for m in messages %}"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }}|{{ m.content }}"
    "{% endfor %}{{ documents is none }}{{ 'name' in messages[3] }}",
    "generation": "{% for m in messages %}{% generation %}{% set said = m.content %}{{ said }}{% endgeneration %}"
    "{{ said is defined }}{% endfor %}",
    "dict and date": "{{ dict(a=1, b=messages[0].role) }}{{ dict.fromkeys(['x'], 2) }}{{ strftime_now('%Y') }}"
    "{{ range(3) | list }}{{ color | default('none') }}{{ '%.2f' | format(2) }}{{ messages[0].content }}",
    "unsafe": "{{ messages.__class__.__mro__ }}",
    "dict's class": "{{ dict.mro is defined }}{{ dict.update is defined }}",
    "changes what it is given": "{{ messages.append(1) }}",
    "raises": "{{ raise_exception('no: ' + messages[0].role) }}",
    "divides": "{{ 1 // (messages | length - 7) }}",
    "undefined": "{{ messages[0].nothing.at_all }}",
    "no content": "{{ messages[0].role }}",
    "drops the last": "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}",
}


def rendered(render: Callable[..., Any], *args: object, **kwargs: Any) -> str:
    """What it says, or why not."""
    try:
        said: str = render(*args, **kwargs)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error).partition('Final message to continue:')[0]}"
    return said


@pytest.mark.parametrize("ends", ["prompt", "continues", "neither", "both"])
@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_template__any_of_these__renders_what_transformers_does(
    tmp_path: Path, name: str, with_tools: bool, ends: str
) -> None:
    theirs = AutoTokenizer.from_pretrained(write_byte_tokenizer(tmp_path, chat_template=TEMPLATES[name]))
    tools = TOOLS if with_tools else []
    how = {"add_generation_prompt": ends in ("prompt", "both"), "continue_final_message": ends in ("continues", "both")}

    expected = rendered(theirs.apply_chat_template, MESSAGES, tools=tools or None, color="red", tokenize=False, **how)
    ours = ChatTemplate(TEMPLATES[name], theirs.special_tokens_map)

    assert rendered(ours.render, MESSAGES, tools, {"color": "red"}, **how) == expected


def test_chat_template__several__has_one_for_tools_and_needs_a_default() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})

    said = [
        template.render(MESSAGES, tools, {}, add_generation_prompt=True, continue_final_message=False)
        for tools in ([], TOOLS)
    ]

    assert said == ["plain", "with tools"]
    assert template.knows_tools
    with pytest.raises(ValueError, match="no default specified"):
        ChatTemplate({"rag": "x"}, {})


# ---- tokenizers ----


def write(folder: Path, *, config: Mapping[str, Any], files: Mapping[str, Any]) -> Path:
    """The tokenizer of demos, as `config` and `files` describe it."""
    folder.mkdir(exist_ok=True)
    build_demo_tokenizer(640).save(str(folder / "tokenizer.json"))
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}
    written = {"tokenizer_config.json": {**plain, **config}, **files}
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def flags(content: str, **changed: bool) -> dict[str, Any]:
    kept = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **kept, "special": True, **changed}


GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# As its checkpoints are on Hugging Face.
QWEN_CONFIG: Mapping[str, Any] = {
    "add_bos_token": False,
    "add_prefix_space": False,
    "added_tokens_decoder": {
        "637": flags("<|endoftext|>"),
        "638": flags("<|im_start|>"),
        "639": flags("<|im_end|>"),
        "640": flags("<tool_call>", special=False),
    },
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "bos_token": None,
    "errors": "replace",
    "pad_token": "<|endoftext|>",
    "split_special_tokens": False,
    "tokenizer_class": "Qwen2Tokenizer",
    "unk_token": None,
}


def qwen_state(**changed: Any) -> dict[str, Any]:
    """The tokenizer.json of such a checkpoint, with the few words of demos: added tokens come after the vocabulary."""
    state = json.loads(build_demo_tokenizer(640).to_str())
    words = sorted(state["model"]["vocab"].items(), key=lambda word: word[1])[3:]
    state["model"]["vocab"] = {word: place for place, (word, _) in enumerate(words)}
    added = QWEN_CONFIG["added_tokens_decoder"]
    state["added_tokens"] = [{"id": int(token_id), **token} for token_id, token in added.items()]
    state["normalizer"] = {"type": "NFC"}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PRETOKENIZE_REGEX}, "behavior": "Isolated", "invert": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, by_bytes]}
    state["post_processor"] = state["decoder"] = by_bytes
    return {**state, **changed}


PLAIN: Mapping[str, Mapping[str, Any]] = {
    "as demos": {},
    "no chat template": {"config": {"chat_template": None}},
    "its own class": {"config": {"tokenizer_class": "TokenizersBackend", "model_max_length": 9, "add_bos_token": True}},
    "more special tokens": {"config": {"pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>"]}},
    "tokens declared twice": {"config": {"added_tokens_decoder": {"2": flags("<|im_end|>")}}},
    "templates by name": {
        "config": {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    },
    "template in a file": {"files": {"chat_template.jinja": "from a file {{ eos_token }}"}},
    "templates in files": {
        "files": {"chat_template.jinja": "a", "additional_chat_templates/rag.jinja": "b {{ messages }}"}
    },
    "response template": {"config": {"response_template": {"fields": {"content": {"close": "x", "content": "text"}}}}},
    "of a family": {"files": {"config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}}},
    "of another class's family": {"files": {"config.json": {"model_type": "gemma3_text"}}},
    "of a family nobody knows": {"files": {"config.json": {"model_type": "quite-new"}}},
    "Qwen 2.5": {
        "config": QWEN_CONFIG,
        "files": {"tokenizer.json": qwen_state(), "config.json": {"model_type": "qwen2"}},
    },
    "Qwen 3": {
        "config": QWEN_CONFIG,
        "files": {"tokenizer.json": qwen_state(), "config.json": {"model_type": "qwen3"}},
    },
    "as Qwen, of another family": {
        "config": QWEN_CONFIG,
        "files": {"tokenizer.json": qwen_state(), "config.json": {"model_type": "phi3"}},
    },
}
LEFT_TO_TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "token that is missing": {"config": {"pad_token": "<pad>"}},
    "token that is text": {"config": {"sep_token": "a"}},
    "token in parts": {"config": {"bos_token": {"__type": "AddedToken", **flags("<|endoftext|>")}}},
    "tokens declared anew": {"config": {"added_tokens_decoder": {"640": flags("<new>")}}},
    "token of its own name": {"config": {"image_token": "<|im_start|>"}},
    "token that splits": {"config": {"split_special_tokens": True}},
    "legacy file": {"files": {"special_tokens_map.json": {"pad_token": "<pad>"}}},
    "rebuilt family": {"files": {"config.json": {"model_type": "qwen2"}}},
    "named class": {"config": {"tokenizer_class": "LlamaTokenizer"}},
    "Qwen with other words": {
        "config": QWEN_CONFIG,
        "files": {
            "tokenizer.json": qwen_state(pre_tokenizer=GPT2_WORDS),
            "config.json": {"model_type": "qwen3"},
        },
    },
    "Qwen that normalises nothing": {
        "config": QWEN_CONFIG,
        "files": {"tokenizer.json": qwen_state(normalizer=None), "config.json": {"model_type": "qwen2"}},
    },
    "Qwen with a gap": {
        "config": {
            **QWEN_CONFIG,
            "added_tokens_decoder": {"637": flags("<|endoftext|>"), "645": flags("<|im_end|>")},
            "additional_special_tokens": [],
        },
        "files": {
            "tokenizer.json": qwen_state(
                added_tokens=[{"id": 637, **flags("<|endoftext|>")}, {"id": 645, **flags("<|im_end|>")}]
            )
        },
    },
    "Qwen with tokens that only the tokenizer declares": {
        "config": {**QWEN_CONFIG, "added_tokens_decoder": {"639": flags("<|im_end|>")}},
        "files": {"tokenizer.json": qwen_state()},
    },
    "Qwen that leaves tokens to its class": {
        "config": {name: value for name, value in QWEN_CONFIG.items() if name != "pad_token"},
        "files": {"tokenizer.json": qwen_state()},
    },
    "no class": {"config": {"tokenizer_class": None}},
}


def assert_is_transformers(ours: ChatTokenizer, folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    assert json.loads(ours.backend.to_str()) == json.loads(theirs.backend_tokenizer.to_str()) or all(
        ours.backend.encode(text, add_special_tokens=special).ids
        == theirs.backend_tokenizer.encode(text, add_special_tokens=special).ids
        for text in TEXTS
        for special in (False, True)
    )
    assert ours.chat_template == theirs.chat_template
    assert ours.named_tokens == theirs.special_tokens_map
    assert list(ours.special_tokens) == theirs.all_special_tokens
    assert ours.response_template == getattr(theirs, "response_template", None)


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise AssertionError("the files say all")

    monkeypatch.setattr(chat_tokenizer, "_by_transformers", fail)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.usefixtures("without_transformers")
def test_chat_tokenizer__files_say_all__is_what_transformers_makes_of_them(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, **{"config": {}, "files": {}, **PLAIN[name]})

    assert_is_transformers(load_chat_tokenizer(str(folder), None, SharedTokenizers()), folder)


@pytest.mark.parametrize("name", LEFT_TO_TRANSFORMERS)
def test_chat_tokenizer__files_leave_something_open__is_what_transformers_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write(tmp_path, **{"config": {}, "files": {}, **LEFT_TO_TRANSFORMERS[name]})
    asked = []
    load = chat_tokenizer._by_transformers
    monkeypatch.setattr(chat_tokenizer, "_by_transformers", lambda *args: asked.append(args) or load(*args))

    assert_is_transformers(load_chat_tokenizer(str(folder), None, SharedTokenizers()), folder)
    assert asked == [(str(folder), None)]


@pytest.mark.parametrize("name", DEMO_SHAPES)
def test_chat_tokenizer__demo_checkpoint__is_what_transformers_makes_of_it(
    demo_checkpoints: Mapping[str, Path], name: str
) -> None:
    folder = demo_checkpoints[name]

    assert_is_transformers(load_chat_tokenizer(str(folder), None, SharedTokenizers()), folder)


@given(text=st.text(alphabet=st.characters(codec="utf-8")))
def test_chat_tokenizer__any_text__has_the_tokens_that_transformers_gives_it(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-text"
    if not folder.exists():
        write(folder, config={}, files={})

    ours = load_chat_tokenizer(str(folder), None, SharedTokenizers()).backend.encode(text, add_special_tokens=True).ids

    assert ours == AutoTokenizer.from_pretrained(folder).encode(text)


def test_families_that_transformers_rebuilds__all__are_left_to_it() -> None:
    registered = tokenization_auto.TOKENIZER_MAPPING_NAMES
    as_they_are = {None, "TokenizersBackend", "PythonBackend", "PreTrainedTokenizer"}
    incorrect = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    rebuilt = {family for family in incorrect if (registered.get(family) or "").removesuffix("Fast") not in as_they_are}

    assert rebuilt - chat_tokenizer._OTHERWISE == {"qwen2"}, "which is left to it where its file is not as it builds it"


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TextProcess]:
    """The process that works on text, where there is no transformers, and Hugging Face has one model."""
    shadow = tmp_path / "shadow" / "transformers"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise ImportError('there is no transformers')")
    files = {file.name: file.read_bytes() for file in write(tmp_path / "hub", config={}, files={}).iterdir()}
    with fake_hub("some-org/some-model", files, token=HUB_TOKEN) as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": HUB_TOKEN}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", str(shadow.parent))
        started = await TextProcess.start()
        yield started
        started.kill()


async def test_text_process__tokenizer_whose_files_say_all__does_without_transformers(
    process: TextProcess, tmp_path: Path
) -> None:
    plain = TokenizerKey(str(write(tmp_path / "plain", config={"chat_template": CHAT_TEMPLATE}, files={})), None)
    other = TokenizerKey(str(write(tmp_path / "other", config={"tokenizer_class": "LlamaTokenizer"}, files={})), None)

    failed = await process.ask(LoadTokenizer(0, other))
    await process.ask(LoadTokenizer(0, plain))
    chat = await process.ask(EncodeChat(0, plain, [{"role": "user", "content": "hi"}], [], {}, 60.0, 100))
    text = await process.ask(EncodeText(0, plain, "<user>hi\n<assistant>", add_special_tokens=False, max_tokens=99))

    assert isinstance(failed, TokenizerFailed)
    assert "there is no transformers" in failed.reason
    assert isinstance(chat, Encoded)
    assert isinstance(text, Encoded)
    assert chat.token_ids == text.token_ids != []


async def test_text_process__tokenizer_of_hugging_face__does_without_transformers_too(process: TextProcess) -> None:
    there, nowhere = TokenizerKey("some-org/some-model", None), TokenizerKey("some-org/no-model", None)

    loaded = await process.ask(LoadTokenizer(0, there))
    failed = await process.ask(LoadTokenizer(0, nowhere))

    assert isinstance(loaded, TokenizerLoaded), loaded
    assert loaded.vocab_size == 640
    assert isinstance(failed, TokenizerFailed)
    assert "there is no transformers" in failed.reason, "it is asked for the reason"
