"""One model's tokenizer and chat template, in the process that works on text. Needs transformers, and no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdmux_actor.models.checkpoint import is_shape_only
from pdmux_actor.models.demo_tokenizer import CHAT_TEMPLATE, SHAPE_ONLY_VOCABULARY, build_demo_tokenizer
from pdmux_actor.models.gguf_files.hub_files import gguf_file
from pdmux_actor.models.gguf_files.layout_folder import layout_folder
from router.text.call_marks import call_marks
from router.text.characters import characters_per_token
from router.text.reply_templates import TOOL_FIELD, needs_special_tokens, separates, template_for, without
from router.text.tool_prompt import with_tools_told

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Arguments of transformers' `apply_chat_template`, and variables that are the gateway's to set.
_OURS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
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
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # A slow tokenizer has no backend; every architecture we serve has a fast one.
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.characters_per_token = characters_per_token(self._backend)
        variables = _read_variables(tokenizer) if tokenizer.chat_template else frozenset()
        self.template_variables = _settable(variables) if tokenizer.chat_template else None
        several = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
        self._knows_tools = "tools" in variables or "tool_use" in several
        own = getattr(tokenizer, "response_template", None)
        template: dict[str, Any] = own or template_for(_chat_template(tokenizer))
        self.response_template = template if separates(template) else None
        callless = without(template, (TOOL_FIELD,))
        self.callless_template = callless if separates(callless) else None
        self.marks_are_special = needs_special_tokens(template, tokenizer.all_special_tokens)
        self.call_marks = call_marks(template, tokenizer.all_special_tokens)

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
        import jinja2  # not at the top: the template engine is transformers' and comes with it

        arguments = {**template_arguments, "tokenize": False, "add_generation_prompt": add_generation_prompt}
        if continue_final_message:
            arguments["continue_final_message"] = True
        told = [dict(message) for message in messages]
        if not self._knows_tools and (tools or any("tool_calls" in message for message in messages)):
            told = with_tools_told(messages, tools)
        elif tools:
            arguments["tools"] = list(tools)
        try:
            rendered = self._tokenizer.apply_chat_template(told, **arguments)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # Behind this mark transformers tells the conversation: messages of errors reach logs.
            raise TemplateRefusal(str(error).partition("Final message to continue:")[0]) from error
        if not isinstance(rendered, str):
            raise TemplateRefusal("it does not render text")
        return rendered

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The backend's own: the wrapper's would set truncation on it.
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Returns what the vocabulary calls these tokens; "" of an id that it does not have."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]


def load_encoder(source: str, revision: str | None) -> PromptEncoder:
    """Slow: imports transformers, reads files, may download. Raises whatever a broken tokenizer provokes."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # takes a second

    file = gguf_file(source, source, revision)
    if file is not None:
        source = str(layout_folder(source, file))
    if is_shape_only(Path(source)):
        tokenizer = build_demo_tokenizer(SHAPE_ONLY_VOCABULARY)
        return PromptEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE))
    return PromptEncoder(AutoTokenizer.from_pretrained(source, revision=revision))


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several, by name
        return "".join(map(str, template.values()))
    return template or ""


def _read_variables(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """What the default template looks up in its context, without what transformers and the checkpoint set."""
    from jinja2 import meta
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = tokenizer.get_chat_template()
    environment = _compile_jinja_template(template).environment
    read = meta.find_undeclared_variables(environment.parse(template))
    return frozenset(read - set(environment.globals) - set(tokenizer.special_tokens_map))


def _settable(variables: frozenset[str]) -> list[str]:
    """What a request may set of them."""
    return sorted(name for name in variables - _OURS if not name.startswith(("return_", "_")))
