"""One model's tokenizer and chat template, in the process that works on text."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from pdmux_actor.models.demo_tokenizer import (
    CHAT_TEMPLATE,
    SHAPE_ONLY_VOCABULARY,
    build_demo_tokenizer,
    is_shape_only,
)
from router.text.apertus_chats import functions_of, with_apertus_calls
from router.text.call_forms import APERTUS, KIMI
from router.text.call_marks import call_marks
from router.text.characters import characters_per_token
from router.text.chat_template import ChatTemplate
from router.text.chat_tokenizer import ChatTokenizer, load_chat_tokenizer
from router.text.harmony_template import HARMONY, HARMONY_EFFORTS, HARMONY_MARK, before_answer
from router.text.kimi_ids import with_kimi_ids
from router.text.reply_templates import TOOL_FIELD, needs_special_tokens, separates, template_for, without
from router.text.role_order import with_one_system_message, with_turns
from router.text.shared_tokenizers import SharedTokenizers
from router.text.tool_prompt import with_tools_told

# Arguments of transformers' `apply_chat_template`, and variables that are the gateway's to set.
_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "max_length",
        "messages",
        "padding",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class TemplateRefusal(Exception):
    """The chat template does not render these messages."""


class PromptEncoder:
    """Raises ValueError, jinja2.TemplateError: the chat template is none."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._backend = tokenizer.backend
        self.digest = tokenizer.digest
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.characters_per_token = tokenizer.characters_per_token
        templates = tokenizer.chat_template
        self._template = ChatTemplate(templates, tokenizer.named_tokens) if templates else None
        self.template_variables = None if self._template is None else _settable(self._template.variables)
        said = "".join(map(str, templates.values())) if isinstance(templates, Mapping) else templates or ""
        self.efforts = [] if self._template is None else self._template.efforts
        if HARMONY_MARK in said and not self.efforts:
            self.efforts = list(HARMONY_EFFORTS)
        knows_tools = self._template is not None and self._template.knows_tools
        template = dict(tokenizer.response_template or template_for(said, knows_tools=knows_tools))
        self._names_calls_by_id = template["fields"].get(TOOL_FIELD) == KIMI
        self._is_apertus = template["fields"].get(TOOL_FIELD) == APERTUS
        self.response_template = template if separates(template) else None
        callless = without(template, (TOOL_FIELD,))
        self.callless_template = callless if separates(callless) else None
        self.marks_are_special = needs_special_tokens(template, tokenizer.special_tokens)
        self.call_marks = call_marks(template, tokenizer.special_tokens)
        self.reranker = tokenizer.reranker
        self.unserved_embeddings = tokenizer.unserved_embeddings
        self.declares_embeddings = tokenizer.declares_embeddings
        self.before_answer = before_answer(self._backend.token_to_id) if template == HARMONY else ""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Raises:
        TemplateRefusal: the template says no, or these arguments make it fail.
        """
        if self._template is None:
            raise TemplateRefusal("the model has none")
        told = with_kimi_ids(messages) if self._names_calls_by_id else messages
        if self._is_apertus:
            told, tools = with_apertus_calls(messages), functions_of(tools)
        if not self._template.knows_tools and (tools or any("tool_calls" in message for message in messages)):
            told, tools = with_tools_told(messages, tools), ()
        render = partial(
            self._template.render,
            tools=tools,
            arguments=template_arguments,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        try:
            try:
                return render(told)
            except TypeError:  # templates of DeepSeek's join arguments of calls to text
                return render([_with_arguments_as_text(message) for message in told])
            except TemplateError:  # gpt-oss' takes thoughts or a text before calls, and has both be thoughts
                again = [_with_text_in_thoughts(message) for message in with_one_system_message(told)]
                in_turns = with_turns(again)
                if in_turns == list(told):
                    raise
                with suppress(TemplateError):
                    return render(again)
                return render(in_turns)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateRefusal(str(error)) from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Returns what the vocabulary calls these tokens; "" of an id that it does not have."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]


def _thinks_says_and_calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("reasoning_content") and message.get("content") and message.get("tool_calls"))


def _with_text_in_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _thinks_says_and_calls(message):
        return message
    return {**message, "content": "", "reasoning_content": f"{message['reasoning_content']}\n\n{message['content']}"}


def _with_arguments_as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [{**call["function"], "arguments": _text(call["function"]["arguments"])} for call in calls]
    texts = [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]
    return {**message, "tool_calls": texts}


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def load_encoder(source: str, revision: str | None, shared: SharedTokenizers) -> PromptEncoder:
    """Loads as `load_chat_tokenizer`."""
    if not Path(source).is_dir():
        source = _layout_of_gguf(source, revision) or source
    if is_shape_only(Path(source)):
        demo = build_demo_tokenizer(SHAPE_ONLY_VOCABULARY)
        return PromptEncoder(
            ChatTokenizer(
                backend=demo,
                characters_per_token=characters_per_token(demo),
                chat_template=CHAT_TEMPLATE,
                named_tokens={},
                special_tokens=(),
            )
        )
    return PromptEncoder(load_chat_tokenizer(source, revision, shared))


def _layout_of_gguf(source: str, revision: str | None) -> str | None:
    """None: it is no GGUF file. Its reader, and what talks to Hugging Face, take 20 MiB that a folder does not need."""
    from pdmux_actor.models.gguf_files.hub_files import gguf_file
    from pdmux_actor.models.gguf_files.layout_folder import layout_folder

    file = gguf_file(source, source, revision)
    return None if file is None else str(layout_folder(source, file))


def _settable(variables: frozenset[str]) -> list[str]:
    """What a request may set of them."""
    return sorted(name for name in variables - _OURS if not name.startswith(("return_", "_")))
