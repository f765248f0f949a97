"""Finds in a chat template which reasoning efforts it knows. Apart from who tells them: that goes without jinja2."""

from jinja2 import nodes

from router.text.reasoning_efforts import EFFORT_NAMES, EFFORT_SCALE


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
        if _reads(chosen.test) and len(either) == 2 and all(value in EFFORT_SCALE for value in either):
            found += either
    return [value for value in dict.fromkeys(found) if isinstance(value, str) and value in EFFORT_SCALE]


def _reads(expression: nodes.Expr) -> bool:
    names = [expression] if isinstance(expression, nodes.Name) else expression.find_all(nodes.Name)
    return any(  # a variable made of it, too
        isinstance(name, nodes.Name) and any(effort in name.name for effort in EFFORT_NAMES) for name in names
    )
