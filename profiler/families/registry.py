"""Model families by the name that config.json uses: every file of this folder that declares a FAMILY."""

from profiler.families.entry import ModelFamily
from traces.register import Register

FAMILIES = Register("profiler.families", "FAMILY", ModelFamily)
