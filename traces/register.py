"""A register: what the files of one folder declare, by name.

Every file that has something to declare holds one constant, for example `POLICY = PolicyEntry(name=..., ...)`. Whatever
lists the names (schemas, helps, errors, tables, tests) asks the register; adding a file to the folder adds the name.
It lies in the lowest package because packages above it build registers of their own.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, TypeVar


class Named(Protocol):
    """Holds what a register can hold."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named, covariant=True)


class Register(Mapping[str, Entry]):
    """Holds what the modules of `folder` declare in `constant`, in the order of the names. Modules without the constant
    are there to be used by others. Built once, where it is declared, and never changed.

    Raises:
        TypeError: a module's constant is no `kind`.
        ValueError: two modules declare the same name.
    """

    def __init__(self, folder: str, constant: str, kind: type[Entry]) -> None:
        self.constant = constant
        declared = list(_declared(folder, constant, kind))
        by_name = {entry.name: entry for _, entry in declared}
        for module, entry in declared:
            if by_name[entry.name] is not entry:
                raise ValueError(f"{module}: another {constant} of {folder} is named {entry.name!r}; choose a name")
        self._entries: Mapping[str, Entry] = MappingProxyType({name: by_name[name] for name in sorted(by_name)})

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def remedy(self, name: str) -> str:
        """Returns the answer to someone who gave a name that nobody declares."""
        near = get_close_matches(name, self, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        return f"unknown {self.constant.lower()}; {guess}known: {', '.join(self)}"


def _declared(folder: str, constant: str, kind: type[Entry]) -> Iterator[tuple[str, Entry]]:
    for found in pkgutil.iter_modules(import_module(folder).__path__):
        module = f"{folder}.{found.name}"
        entry = getattr(import_module(module), constant, None)
        if entry is None:
            continue
        if not isinstance(entry, kind):
            raise TypeError(f"{module}: {constant} must be a {kind.__name__}, not {entry!r}")
        yield module, entry
