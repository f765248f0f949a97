"""Finds which models compete for the same room: those that share a unit, directly or through others."""

from collections.abc import Iterable


def rival_models(units: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Returns the models of `units` in groups that share none; `units` holds the models of each.

    >>> [sorted(group) for group in rival_models([frozenset("ab"), frozenset("cd"), frozenset("bx"), frozenset("c")])]
    [['a', 'b', 'x'], ['c', 'd']]
    """
    group_of: dict[str, set[str]] = {}
    for models in set(units):
        joined = set(models)
        for model in models:
            joined |= group_of.get(model, frozenset())
        for model in joined:
            group_of[model] = joined
    groups = {min(group): frozenset(group) for group in group_of.values()}
    return [groups[first] for first in sorted(groups)]
