"""A device on which some models slow each other down more than others, as caches and memory buses have it."""

from collections.abc import Mapping
from types import MappingProxyType

from deploy.simulation.virtual_world import StretchExecutor

Interference = Mapping[tuple[str, str], float]
"""By model and neighbour: how much longer its launches take while one of the neighbour's runs."""


class InterferingExecutor(StretchExecutor):
    interference: Interference = MappingProxyType({})

    def _changed(self) -> None:
        super()._changed()
        if self.interference and len(self._lanes) > 1:
            running = {number: work.launch.model for number, work in self._lanes.items()}
            for number, work in self._lanes.items():
                others = (model for other, model in running.items() if other != number)
                work.rate /= max(self.interference.get((work.launch.model, model), 1.0) for model in others)
