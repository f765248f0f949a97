"""Says to a chat template how much reasoning is asked for, in the words that it knows."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import nodes

_SCALE: Mapping[str, int] = {
    "none": 0,
    "no_think": 0,  # Hunyuan's
    "minimal": 1,
    "low": 2,
    "medium": 3,
    "high": 4,
    "xhigh": 5,
    "max": 6,
}
_NAME = "reasoning_effort"


def named_efforts(template: nodes.Template) -> list[str]:
    """Returns the efforts beside which a template knows no other: those of a list for what is `not in` it, or two that
    it chooses from. Empty: it does not say. (A list for what is `in` it may be some of them.)
    """
    found: list[object] = []
    for compared in template.find_all(nodes.Compare):
        listed = compared.ops[0].expr
        if compared.ops[0].op == "notin" and isinstance(listed, nodes.List | nodes.Tuple) and _reads(compared.expr):
            found += [item.value for item in listed.items if isinstance(item, nodes.Const)]
    for chosen in template.find_all(nodes.CondExpr):
        either = [one.value for one in (chosen.expr1, chosen.expr2) if isinstance(one, nodes.Const)]
        if _reads(chosen.test) and len(either) == 2 and all(value in _SCALE for value in either):
            found += either
    return [value for value in dict.fromkeys(found) if isinstance(value, str) and value in _SCALE]


def _reads(expression: nodes.Expr) -> bool:
    names = [expression] if isinstance(expression, nodes.Name) else expression.find_all(nodes.Name)
    return any(isinstance(name, nodes.Name) and _NAME in name.name for name in names)  # a variable made of it, too


def effort_arguments(variables: Sequence[str], known: Sequence[str], effort: str | None) -> dict[str, Any]:
    """Returns the arguments of a template that reads `variables`: an effort, the nearest that it knows, of two the
    higher; or a switch. `known` as `named_efforts`.
    """
    if effort is None:
        return {}
    thinks = effort != "none"
    said: dict[str, Any] = {name: thinks for name in ("enable_thinking", "thinking") if name in variables}
    if _NAME not in variables:
        return said
    nearest = min(known, key=lambda name: (abs(_SCALE[name] - _SCALE[effort]), -_SCALE[name]), default=effort)
    if not thinks and said and _SCALE[nearest] > 0:
        return said  # the switch says it
    return {_NAME: nearest, **said}
