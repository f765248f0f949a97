"""Settings whose values are the names of a register."""

from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import PydanticCustomError

from traces.register import Named, Register


def is_known(register: Register[Named]) -> Callable[[str], str]:
    """Checks a value; the schema and the error both list what the register holds."""

    def known(name: str) -> str:
        if name not in register:
            raise PydanticCustomError("unknown_name", "{remedy}", {"remedy": register.remedy(name)})
        return name

    return known


def names_schema(names: Iterable[str]) -> dict[str, Any]:
    return {"enum": list(names), "type": "string"}
