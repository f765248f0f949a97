"""Tells those who wait, or waited in vain, for a model that no unit has ready how far it is."""

import math
from collections.abc import Callable

from pdmux_actor.lease import ModelPhase
from router.admission.admission import MAX_RETRY_AFTER_S
from router.admission.load_forecast import LoadForecast, LoadOutlook
from router.errors import ModelUnavailable
from router.live_view import LiveView


class ModelAbsence:
    """Call `update` when `view` has a new one."""

    def __init__(self, view: LiveView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._forecast = LoadForecast()

    def update(self) -> None:
        self._forecast.update(self._view.current, self._clock())

    def outlook(self, model: str) -> LoadOutlook | None:
        """Returns how far the model is; None where a unit has it, or none is on its way to it."""
        return self._forecast.outlook(model, self._clock())

    def error(self, model: str, waited_s: float, retry_after_s: int) -> ModelUnavailable:
        """`retry_after_s` holds where loading units tell nothing."""
        outlook = self.outlook(model)
        if outlook is not None and outlook.ready_in_s is not None:
            retry_after_s = math.ceil(max(1.0, min(float(MAX_RETRY_AFTER_S), outlook.ready_in_s)))
        return ModelUnavailable(
            model=model,
            loading=ModelPhase.LOADING in self._view.phases(model),
            waited_s=waited_s,
            retry_after_s=retry_after_s,
            progress="" if outlook is None else outlook.text(),
            headers={} if outlook is None else outlook.headers(),
        )
