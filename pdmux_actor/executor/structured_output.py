"""Forms of outputs, compiled for one model's tokens by xgrammar; what follows of them for a sequence's next token.

xgrammar takes seconds to import: only engines whose models are asked for a form import this.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xgrammar

from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.executor.made_up_outputs import SoonEnding
from pdmux_actor.messages import StructuredKind, StructuredOutput
from pdmux_actor.scheduling.output_constraint import OutputConstraint

# After these bytes fewer may follow than the 0x80 to 0xBF that follow others (RFC 3629): first and last.
_NARROW: Mapping[int, tuple[int, int]] = {
    0xE0: (0xA0, 0xBF),
    0xED: (0x80, 0x9F),
    0xF0: (0x90, 0xBF),
    0xF4: (0x80, 0x8F),
}
_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


class Utf8Tokens:
    """One per model's tokens. A token may begin or end in the middle of a character."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Takes the bytes of each token, empty where that is no text."""
        self._last = np.array([text[-1] if text else 0 for text in texts], dtype=np.uint8)
        first = np.array([text[0] if text else 0 for text in texts], dtype=np.uint8)
        size = -(-len(texts) // 32) * 32
        self._after: dict[int, npt.NDArray[np.int32]] = {}
        for byte, (least, most) in _NARROW.items():
            fits = np.zeros(size, dtype=np.uint8)
            fits[: len(texts)] = (first >= least) & (first <= most)
            self._after[byte] = np.packbits(fits, bitorder="little").view(np.int32)

    def restrict(self, last_token_id: int, words: npt.NDArray[np.int32]) -> None:
        """Takes what cannot follow the last byte so far out of the tokens that may come."""
        fitting = self._after.get(int(self._last[last_token_id]))
        if fitting is not None and (words & fitting).any():
            words &= fitting


def is_part_of_utf8(text: bytes) -> bool:
    """False for bytes that stand in no text, wherever it is cut."""
    return _NEVER.isdisjoint(text) and all(
        byte not in _NARROW or _NARROW[byte][0] <= after <= _NARROW[byte][1] for byte, after in pairwise(text)
    )


CACHE_BYTES = 256 * 1024 * 1024  # of compiled forms, for each model twice: of JSON, and others
_MAX_WHITESPACE = 32  # between two parts of a JSON text: enough to indent, and a weak model comes to an end
_WORD_BITS = 32
# A grammar can be such that its mask takes seconds once the output is long: it is walked through before it is served.
_WALK_TOKENS = 96
_SLOW_MASK_S = 0.02
_REMEMBERED_WALKS = 256
_FULL_WORD = -1
_NOT_IN_JSON = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
_LOCATION = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")


class GrammarConstraint:
    """Implements OutputConstraint: one sequence's place in a compiled form."""

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, num_prompt_tokens: int, kind: StructuredKind, compiler: "FormCompiler"
    ) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._num_prompt_tokens = self._read = num_prompt_tokens
        self._kind = kind
        self._compiler = compiler

    def follows(self, token_ids: Sequence[int]) -> bool:
        """Reads what came since the last call. False: it breaks the form, and the constraint is of no use any more."""
        new, self._read = token_ids[self._read :], len(token_ids)
        return all(self._matcher.accept_token(token_id) for token_id in new)

    def fill_mask(self, token_ids: Sequence[int], words: npt.NDArray[np.int32]) -> None:
        followed = self.follows(token_ids)
        assert followed or self._matcher.is_terminated(), "a token was drawn that the mask forbids"
        if self._matcher.is_terminated():  # its end token came and did not end it: nothing is left to keep to
            words[:] = _FULL_WORD
        else:
            self._matcher.fill_next_token_bitmask(torch.from_numpy(words)[None])
            if len(token_ids) > self._num_prompt_tokens:
                self._compiler.utf8.restrict(token_ids[-1], words)

    def simulated_token(self, token_ids: Sequence[int], made_up: int) -> int:
        words = np.zeros(self._compiler.num_words, dtype=np.int32)
        self.fill_mask(token_ids, words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        ends = [i for i in self._compiler.end_token_ids if i in allowed]
        if ends:
            has_free_text = self._kind is StructuredKind.STRUCTURAL_TAG
            return made_up if has_free_text and made_up in allowed else ends[0]
        try:
            forced = self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError:  # it goes on in the middle of a character
            forced = b""
        in_json = self._kind in (StructuredKind.JSON_SCHEMA, StructuredKind.STRUCTURAL_TAG)
        return self._compiler.soon_ending.choose(allowed, forced, made_up + len(token_ids), in_json=in_json)


class FormCompiler:
    """One per model; compiles one form at a time, on whatever thread calls it, without holding others up."""

    def __init__(self, token_bytes: Sequence[bytes], end_token_ids: frozenset[int], *, vocab_size: int) -> None:
        """`token_bytes` are what tokens stand for, empty where that is no text: such tokens are never drawn."""
        whole = [text if is_part_of_utf8(text) else b"" for text in token_bytes[:vocab_size]]
        padded = [*whole, *[b""] * (vocab_size - len(whole))]
        self.utf8 = Utf8Tokens(padded)
        # xgrammar lets raw control characters into strings of bounded length, where JSON has none.
        in_json = [b"" if _NOT_IN_JSON.search(text) else text for text in padded]
        self._compiler, self._json_compiler = (
            xgrammar.GrammarCompiler(
                xgrammar.TokenizerInfo(texts, vocab_size=vocab_size, stop_token_ids=sorted(end_token_ids)),
                max_threads=1,
                cache_limit_bytes=CACHE_BYTES,
            )
            for texts in (padded, in_json)
        )
        self._texts, self._json_texts = padded, in_json
        self._end_token_ids = end_token_ids
        self._marking: dict[bool, xgrammar.GrammarCompiler] = {}  # by whether it compiles JSON
        self.end_token_ids = sorted(end_token_ids)
        self.num_words = -(-vocab_size // _WORD_BITS)
        self._walked: set[StructuredOutput] = set()

    @cached_property
    def soon_ending(self) -> SoonEnding:
        return SoonEnding(self._texts)

    def constraint(self, form: StructuredOutput, prompt_tokens: int, token_ids: Sequence[int]) -> OutputConstraint:
        """Makes a matcher for a sequence of so many prompt tokens.

        `token_ids` are those and what another unit produced already.

        Raises:
            InvalidStructuredOutput: the form cannot be compiled or followed, or the output so far breaks it.
        """
        compiled = self._compile(form)
        if form not in self._walked:
            self._walk(compiled)
            if len(self._walked) >= _REMEMBERED_WALKS:
                self._walked.clear()
            self._walked.add(form)
        constraint = GrammarConstraint(compiled, prompt_tokens, form.kind, self)
        if not constraint.follows(token_ids):
            raise InvalidStructuredOutput(reason="the output so far does not follow it")
        return constraint

    def _marking_compiler(self, *, in_json: bool) -> xgrammar.GrammarCompiler:
        """Makes one for forms that name tokens without text: they get one that stands in no UTF-8."""
        if in_json not in self._marking:
            texts = self._json_texts if in_json else self._texts
            marked = [text or b"\xff%d" % token_id for token_id, text in enumerate(texts)]
            stops = sorted(self._end_token_ids)
            info = xgrammar.TokenizerInfo(marked, vocab_size=len(marked), stop_token_ids=stops)
            self._marking[in_json] = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)
        return self._marking[in_json]

    def _compile(self, form: StructuredOutput) -> xgrammar.CompiledGrammar:
        try:
            if form.before and (answer := _format(form)) is not None:
                lead = {"type": "optional", "content": {"type": "sequence", "elements": json.loads(form.before)}}
                tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [lead, answer]}}
                in_json = form.kind is StructuredKind.JSON_SCHEMA
                return self._marking_compiler(in_json=in_json).compile_structural_tag(json.dumps(tag))
            match form.kind:
                case StructuredKind.JSON_SCHEMA:
                    return self._json_compiler.compile_json_schema(form.text, max_whitespace_cnt=_MAX_WHITESPACE)
                case StructuredKind.REGEX:
                    return self._compiler.compile_regex(form.text)
                case StructuredKind.CHOICE:
                    return self._compiler.compile_grammar(_alternatives(json.loads(form.text)))
                case StructuredKind.GRAMMAR:
                    return self._compiler.compile_grammar(form.text)
                case StructuredKind.STRUCTURAL_TAG:
                    bounds = '"maxLength"' in form.text or '"minLength"' in form.text
                    return (self._json_compiler if bounds else self._compiler).compile_structural_tag(form.text)
        except (RuntimeError, ValueError, TypeError) as error:  # xgrammar's own, and pydantic's of structural tags
            raise InvalidStructuredOutput(reason=_LOCATION.sub("", str(error).strip())) from error

    def _walk(self, compiled: xgrammar.CompiledGrammar) -> None:
        """Follows the form for some tokens, always the same, and ends only where nothing else may follow."""
        matcher = xgrammar.GrammarMatcher(compiled)
        words = np.zeros(self.num_words, dtype=np.int32)
        choice = np.random.default_rng(0)
        slow = 0
        for _ in range(_WALK_TOKENS):
            started_s = time.thread_time()
            matcher.fill_next_token_bitmask(torch.from_numpy(words)[None])
            allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(self._texts)]
            if not allowed.any():
                raise InvalidStructuredOutput(reason="no output can follow it")
            allowed[self.end_token_ids] = 0
            going_on = np.flatnonzero(allowed)
            if not len(going_on):
                return
            matcher.accept_token(int(choice.choice(going_on)))
            slow += time.thread_time() - started_s > _SLOW_MASK_S
            if slow > 2:
                raise InvalidStructuredOutput(
                    reason=f"it takes more than {_SLOW_MASK_S * 1e3:.0f} ms a token to follow; "
                    "nest fewer repetitions, or make alternatives begin differently"
                )


def _format(form: StructuredOutput) -> dict[str, Any] | None:
    """Says it as a part of a structural tag. None: it is one that has no parts."""
    match form.kind:
        case StructuredKind.JSON_SCHEMA:
            schema = json.loads(form.text)
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MAX_WHITESPACE}
        case StructuredKind.REGEX:
            return {"type": "regex", "pattern": form.text}
        case StructuredKind.CHOICE:
            return {"type": "grammar", "grammar": _alternatives(json.loads(form.text))}
        case StructuredKind.GRAMMAR:
            return {"type": "grammar", "grammar": form.text}
        case StructuredKind.STRUCTURAL_TAG:
            return None


def _alternatives(choices: Sequence[str]) -> str:
    """As EBNF, whose strings are JSON's."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
