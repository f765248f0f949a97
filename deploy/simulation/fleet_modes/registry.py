"""Fleet modes by the name that experiment files use: every file of this folder that declares a FLEET_MODE."""

from deploy.simulation.fleet_modes.entry import FleetMode
from traces.register import Register

FLEET_MODES = Register("deploy.simulation.fleet_modes", "FLEET_MODE", FleetMode)
