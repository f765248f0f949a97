"""Shows one answer of a chat as it comes."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from deploy.inspection.chat_stream import ChatPiece

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey: a model may say it, or repeat it from what it was given."""


@dataclass(slots=True)
class AnswerFigures:
    """`text` is what has been said; times are of time.monotonic."""

    text: str = ""
    first_s: float | None = None
    last_s: float = 0.0
    pieces: int = 0
    tokens: int | None = None
    finish_reason: str | None = None

    def add(self, piece: ChatPiece, now_s: float) -> None:
        self.text += piece.text
        self.tokens = piece.tokens if piece.tokens is not None else self.tokens
        self.finish_reason = piece.finish_reason or self.finish_reason
        if piece.text or piece.thought:
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
            self.pieces += 1

    def line(self, asked_s: float) -> str:
        """Tells them in short, and why an answer is not whole.

        >>> AnswerFigures("Hi", 1.5, 2.5, 3, 11, "length").line(1.0)
        '11 tokens, the first after 0.50 s, then 10.0 a second; cut off: it had --max-tokens, or the context is full'
        """
        tokens = self.pieces if self.tokens is None else self.tokens
        told = f"{tokens} token{'' if tokens == 1 else 's'}"
        if self.first_s is not None:
            told += f", the first after {self.first_s - asked_s:.2f} s"
            if tokens > 1 and self.last_s > self.first_s:
                told += f", then {(tokens - 1) / (self.last_s - self.first_s):.1f} a second"
        ends = {"length": "cut off: it had --max-tokens, or the context is full", "content_filter": "withheld"}
        end = ends.get(self.finish_reason or "")
        return told if end is None else f"{told}; {end}"


def show_answer(console: Console, model: str, pieces: Iterator[ChatPiece], figures: AnswerFigures) -> None:
    """Writes the answer to standard output, and to a terminal thoughts and figures, too. Raises what `pieces` does."""
    asked_s = time.monotonic()
    piece = _awaited(console, model, pieces, figures)
    is_thinking = False
    while piece is not None:
        if piece.thought and console.is_terminal:
            _write(console, piece.thought, style="dim italic")
            is_thinking = True
        if piece.text:
            _write(console, ("\n\n" if is_thinking else "") + piece.text)
            is_thinking = False
        piece = next(pieces, None)
        if piece is not None:
            figures.add(piece, time.monotonic())
    if not figures.text.endswith("\n"):
        _write(console, "\n")
    show_aside(console, figures.line(asked_s))


def show_aside(console: Console, text: str) -> None:
    """Says what is no part of an answer: a pipe gets answers only."""
    if console.is_terminal:
        console.print(text, style="dim", soft_wrap=True)


def _awaited(console: Console, model: str, pieces: Iterator[ChatPiece], figures: AnswerFigures) -> ChatPiece | None:
    """Returns the first piece with something to read, None where there is none."""
    with console.status(f"waiting for {model}") as status:
        for piece in pieces:
            figures.add(piece, time.monotonic())
            if piece.loading:
                status.update(piece.loading)
            if piece.text or piece.thought:
                return piece
    return None


def _write(console: Console, text: str, *, style: str | None = None) -> None:
    console.out(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text), end="", style=style, highlight=False)
