"""Runs an operation of Triton's language as before, where it is given values of the same types and the same constants:
with the calls of the interpreter's builder that Triton's semantic made of it then. The builder computes them anew.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_EITHER_SIDE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")
# None looks at a value to choose its calls. To others, as to those that reduce, the builder is not all.
RECORDED = frozenset(
    {
        *(f"__{name}__" for name in (*_COMPARED, *_EITHER_SIDE, "getitem", "neg", "invert")),
        *(f"__r{name}__" for name in _EITHER_SIDE),
        *("arange", "broadcast_to", "cast", "expand_dims", "full", "reshape", "to", "trans", "zeros"),
        *("abs", "ceil", "exp", "exp2", "floor", "fma", "log", "log2", "maximum", "minimum", "rsqrt", "sqrt", "where"),
        *("dot", "load", "num_programs", "program_id", "store"),
    }
)
_OF_CONSTANTS = ("create_broadcast", "create_expand_dims", "create_int_cast", "create_splat", "get_")
_MOST_SEEN = 100_000  # a kernel's constants are few

_Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Calls:
    """`constants` follow the arguments' handles, results follow them; `steps` have the places of a call's arguments."""

    constants: tuple[object, ...]
    steps: tuple[tuple[_Function, tuple[int, ...]], ...]
    result: int | None
    result_type: core.dtype | None

    def made_again(self, tensors: Sequence[core.tensor]) -> core.tensor | None:
        values = [tensor.handle for tensor in tensors]
        values += self.constants
        for function, places in self.steps:
            values.append(function(*[values[place] for place in places]))
        return None if self.result is None else core.tensor(values[self.result], self.result_type)


class _Recorder:
    """Stands in for the interpreter's builder, while one operation asks it."""

    def __init__(self, builder: interpreter.InterpreterBuilder, handles: Sequence[TensorHandle]) -> None:
        self._builder = builder
        self._given = len(handles)
        self._calls: list[tuple[str, _Function, tuple[object, ...], object]] = []
        self._made_by = {id(handle): -1 - place for place, handle in enumerate(handles)}
        self.is_sound = True

    def __getattr__(self, name: str) -> object:
        member = getattr(self._builder, name)
        return partial(self._asked, name, member) if name.startswith(("create_", "get_")) else member

    def _asked(self, name: str, member: _Function, *arguments: object, **named: object) -> object:
        result = member(*arguments, **named)
        if isinstance(result, TensorHandle):
            if id(result) in self._made_by:
                self.is_sound = False
            self._made_by[id(result)] = len(self._calls)
        elif name.startswith("get_"):
            return result  # a type
        elif result is not None:
            self.is_sound = False
        if any(isinstance(value, TensorHandle) for value in named.values()):
            self.is_sound = False
        self._calls.append((name, partial(member, **named) if named else member, arguments, result))
        return result

    def calls(self, result: core.tensor | None) -> _Calls | None:
        """None where they would not do."""
        constants: list[object] = []
        told: list[tuple[_Function, list[tuple[str, int]]]] = []
        where: dict[int, tuple[str, int]] = {}

        def constant(value: object) -> tuple[str, int]:
            constants.append(value)
            return "constant", len(constants) - 1

        def place(argument: object) -> tuple[str, int]:
            if not isinstance(argument, TensorHandle):
                self.is_sound &= not _holds_handles(argument)
                return constant(argument)
            made_by = self._made_by.get(id(argument))
            if made_by is None:
                self.is_sound = False
                return constant(argument)
            return ("given", -1 - made_by) if made_by < 0 else where[made_by]

        for number, (name, function, arguments, made) in enumerate(self._calls):
            places = [place(argument) for argument in arguments]
            is_result = result is not None and made is result.handle
            if name.startswith(_OF_CONSTANTS) and not is_result and all(kind == "constant" for kind, _ in places):
                made.data.flags.writeable = False
                where[number] = constant(made)
            else:
                where[number] = "made", len(told)
                told.append((function, places))
        end = None if result is None else place(result.handle)
        if not self.is_sound or (end is not None and end[0] == "constant" and result.handle is not None):
            return None
        first = {"given": 0, "constant": self._given, "made": self._given + len(constants)}
        return _Calls(
            constants=tuple(constants),
            steps=tuple((function, tuple(first[kind] + n for kind, n in places)) for function, places in told),
            result=None if end is None else first[end[0]] + end[1],
            result_type=None if result is None else result.type,
        )


def _holds_handles(argument: object) -> bool:
    return isinstance(argument, (list, tuple)) and any(isinstance(item, TensorHandle) for item in argument)


class RecordedOperation:
    """An operation of the language, called as within a kernel."""

    def __init__(self, function: _Function, semantic: TritonSemantic) -> None:
        self._function, self._semantic = function, semantic
        self._seen: dict[Hashable, _Calls | None] = {}

    def __call__(self, *arguments: object, **named: object) -> object:
        tensors: list[core.tensor] = []
        key: list[Hashable] = []
        is_known = True
        for value in arguments:
            if type(value) is core.tensor:
                tensors.append(value)
                key.append(value.type.name)
            else:
                is_known &= _note(value, key)
        for name, value in named.items():
            key.append(name)
            if type(value) is core.tensor:
                tensors.append(value)
                key.append(value.type.name)
            else:
                is_known &= _note(value, key)
        seen = tuple(key)
        if is_known and (calls := self._seen.get(seen)) is not None:
            return calls.made_again(tensors)
        if not is_known or seen in self._seen or len(self._seen) >= _MOST_SEEN:
            return self._function(*arguments, **named, _semantic=self._semantic)
        return self._recorded(seen, arguments, named)

    def _recorded(self, seen: Hashable, arguments: Sequence[object], named: Mapping[str, object]) -> object:
        """An argument that is given twice is two: another time they can differ."""
        handles: list[TensorHandle] = []

        def own(value: object) -> object:
            if not isinstance(value, core.tensor):
                return value
            handles.append(TensorHandle(value.handle.data, value.handle.dtype, value.handle.attr))
            return core.tensor(handles[-1], value.type)

        arguments, named = [own(value) for value in arguments], {name: own(value) for name, value in named.items()}
        recorder = _Recorder(self._semantic.builder, handles)
        result = self._function(*arguments, **named, _semantic=_RecordedSemantic(recorder))
        is_known = result is None or type(result) is core.tensor
        self._seen[seen] = recorder.calls(result) if is_known else None
        return result


class _RecordedSemantic(TritonSemantic):
    """What an operation calls of the language is part of it."""


def is_recorded(semantic: object) -> bool:
    return type(semantic) is _RecordedSemantic


def _note(value: object, key: list[Hashable]) -> bool:
    """Says whether what is added to the key tells the value from any other."""
    kind = type(value)
    key.append(kind)
    if kind is core.constexpr:
        return _note(value.value, key)
    if kind in (tuple, list, core.tuple):
        key.append(len(value))
        return all(_note(item, key) for item in value)
    if kind is slice:
        return (value.start, value.stop, value.step) == (None, None, None)
    if kind is float:
        key.append(value.hex())
    elif kind in (int, bool, str, type(None)):
        key.append(value)
    elif isinstance(value, core.dtype):
        key.append(value.name)
    else:
        return False
    return True
