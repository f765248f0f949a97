"""Solvers by the name that the fleet file and `--solver` use: every file of this folder that declares a SOLVER."""

from placement.solvers.entry import SolverEntry
from traces.register import Register

SOLVERS = Register("placement.solvers", "SOLVER", SolverEntry)
