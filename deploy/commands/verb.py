from typing import Any

from typer.core import TyperCommand


class Verb(TyperCommand):
    """A command whose examples stay in lines of their own, however narrow the terminal: they are to be copied."""

    def __init__(self, *args: Any, **parameters: Any) -> None:  # noqa: ANN401 - what Typer's own takes
        super().__init__(*args, **parameters)
        if self.help is not None:
            self.help = self.help.replace("\n\nExample: ", "\n\n\b\nExample: ")
