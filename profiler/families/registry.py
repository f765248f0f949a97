"""Model families by the name that config.json uses: every file of this folder that declares a FAMILY."""

from collections.abc import Mapping
from difflib import get_close_matches

from profiler.errors import UnsupportedModel
from profiler.families.entry import ModelFamily
from profiler.families.refused_table import REFUSED
from profiler.families.transformers_table import SERVED
from traces.register import Register

FAMILIES = Register("profiler.families", "FAMILY", ModelFamily)


def all_families() -> Mapping[str, ModelFamily]:
    """Returns them by name; a file of its own counts more than a line."""
    return {**REFUSED, **SERVED, **FAMILIES}


def family_of(architecture: str) -> ModelFamily:
    """Raises UnsupportedModel."""
    for known in (FAMILIES, SERVED, REFUSED):
        if architecture in known:
            return known[architecture]
    near = get_close_matches(architecture, all_families(), n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UnsupportedModel(
        field="architectures",
        value=architecture,
        remedy=f"{guess}docs/models.md lists the architectures that are known",
    )
