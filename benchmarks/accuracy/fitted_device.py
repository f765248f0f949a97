"""Device figures chosen so that a prediction suits measured times."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from profiler.latency import Floats
from profiler.specs import DeviceSpec


def fitted(
    device: DeviceSpec,
    *,
    start: Mapping[str, float],
    predicted_s: Callable[[DeviceSpec], Floats],
    measured_s: Floats,
    outlier: float,
) -> DeviceSpec:
    """`device` with the positive figures named in `start` chosen for the least relative error; errors above `outlier`
    weigh less.
    """

    def with_figures(logs: Floats) -> DeviceSpec:
        return replace(device, **dict(zip(start, (float(v) for v in np.exp(logs)), strict=True)))

    def errors(logs: Floats) -> Floats:
        return np.log(predicted_s(with_figures(logs)) / measured_s)

    found = least_squares(errors, np.log(list(start.values())), loss="soft_l1", f_scale=outlier)
    return with_figures(found.x)
