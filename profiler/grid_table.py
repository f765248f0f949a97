"""Measured latencies, interpolated: what a trend leaves unexplained, on a grid of a few features of the batch."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.batch_features import Amount, BatchFeatures, Feature
from profiler.latency import Floats
from profiler.trend import Trend

# Neighbours per dimension that a grid point is estimated from: enough to fit a plane through noisy measurements.
_NEIGHBOURS_PER_AXIS = 4
_RIDGE = 1e-3
_NEAR_KNOTS = 2.0  # a grid point without a measurement this close is a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAxis:
    """`knots` are log2(1 + feature), rising."""

    feature: Feature
    knots: tuple[float, ...]


class GridTable:
    """seconds = trend x 2^r, with r interpolated linearly between the grid's points.

    The trend keeps what the grid cannot know plausible: queries outside of it, and holes between measurements.
    """

    def __init__(
        self, trend: Trend, axes: Sequence[GridAxis], log_ratios: Floats, is_measured: npt.NDArray[np.bool_]
    ) -> None:
        """Arrays have one dimension per axis. `is_measured` marks points with a measurement nearby."""
        assert log_ratios.shape == is_measured.shape == tuple(len(axis.knots) for axis in axes)
        self.trend = trend
        self.axes = tuple(axes)
        self._log_ratios = log_ratios
        self._flat: list[float] = log_ratios.ravel().tolist()
        self._is_measured: list[bool] = is_measured.ravel().tolist()
        self._strides = [math.prod(log_ratios.shape[i + 1 :]) for i in range(log_ratios.ndim)]

    @classmethod
    def fit(
        cls,
        trend_features: Sequence[Feature],
        axis_features: Sequence[Feature],
        batches: BatchFeatures[Floats],
        seconds: Floats,
        *,
        max_knots: int = 128,
    ) -> "GridTable":
        """Measurements need not fill the grid. Axes get a knot per measured value, at most `max_knots` of them."""
        trend = Trend.fit(trend_features, batches, seconds)
        log_ratios = np.log2(seconds / trend.seconds(batches))
        columns = [np.log2(1 + batches.value(name)) for name in axis_features]
        axes = [
            GridAxis(feature=name, knots=_knots(column, max_knots))
            for name, column in zip(axis_features, columns, strict=True)
        ]
        # In units of knots, so that "near" means the same on every axis.
        points = np.stack(
            [np.interp(c, a.knots, np.arange(len(a.knots))) for a, c in zip(axes, columns, strict=True)], axis=1
        )
        shape = tuple(len(axis.knots) for axis in axes)
        nodes = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1).reshape(-1, len(shape))
        values, is_measured = _at_nodes(points, log_ratios, nodes.astype(np.float64))
        return cls(trend, axes, values.reshape(shape), is_measured.reshape(shape))

    def seconds(self, batch: BatchFeatures[Amount]) -> Amount:
        trend_s = self.trend.seconds(batch)
        if isinstance(trend_s, float):
            ratio = sum(weight * self._flat[index] for index, weight in self._corners(batch))
            return trend_s * 2.0**ratio
        return trend_s * np.exp2(self._ratios(batch))

    def is_outside(self, batch: BatchFeatures[float]) -> bool:
        """The query lies beyond the measured range, or where nothing near was measured."""
        for axis in self.axes:
            x = math.log2(1 + batch.value(axis.feature))
            if not axis.knots[0] - 1e-9 <= x <= axis.knots[-1] + 1e-9:
                return True
        return not all(self._is_measured[index] for index, weight in self._corners(batch) if weight > 1e-6)

    def _corners(self, batch: BatchFeatures[float]) -> list[tuple[int, float]]:
        """Index into the flattened grid and weight of the corners of the cell that holds the batch."""
        corners = [(0, 1.0)]
        for axis, stride in zip(self.axes, self._strides, strict=True):
            knots = axis.knots
            x = math.log2(1 + batch.value(axis.feature))
            upper = bisect_right(knots, x)
            if upper == 0 or upper == len(knots):
                at = stride * (upper - (upper > 0))
                corners = [(index + at, weight) for index, weight in corners]
                continue
            share = (x - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
            below = stride * (upper - 1)
            corners = [
                corner
                for index, weight in corners
                for corner in ((index + below, weight * (1 - share)), (index + below + stride, weight * share))
            ]
        return corners

    def _ratios(self, batches: BatchFeatures[Floats]) -> Floats:
        positions = []
        for axis in self.axes:
            x = np.log2(1 + batches.value(axis.feature))
            positions.append(np.interp(x, axis.knots, np.arange(len(axis.knots))))
        answer = np.zeros(np.broadcast_shapes(*(p.shape for p in positions)))
        lows = [
            np.minimum(np.floor(p).astype(np.intp), len(a.knots) - 1) for p, a in zip(positions, self.axes, strict=True)
        ]
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight = np.ones_like(answer)
            index = []
            for up, position, low, axis in zip(corner, positions, lows, self.axes, strict=True):
                share = position - low
                weight = weight * (share if up else 1 - share)
                index.append(np.minimum(low + up, len(axis.knots) - 1))
            answer += weight * self._log_ratios[tuple(index)]
        return answer


def _knots(column: Floats, max_knots: int) -> tuple[float, ...]:
    values = np.unique(np.round(column, 9))
    if len(values) > max_knots:
        values = values[np.unique(np.linspace(0, len(values) - 1, max_knots).round().astype(np.intp))]
    return tuple(float(v) for v in values)


def _at_nodes(points: Floats, values: Floats, nodes: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """A plane through each node's nearest measurements, the nearer the heavier; is one of them near?"""
    from scipy.spatial import cKDTree  # half a second that who has no table is spared

    dimensions = points.shape[1]
    tree = cKDTree(points)
    count = min(len(points), _NEIGHBOURS_PER_AXIS * dimensions + 1)
    distances, neighbours = tree.query(nodes, k=count)
    distances, neighbours = distances.reshape(len(nodes), count), neighbours.reshape(len(nodes), count)
    weights = 1 / (distances**2 + 0.01)
    offsets = points[neighbours] - nodes[:, None, :]
    design = np.concatenate([np.ones((*offsets.shape[:2], 1)), offsets], axis=2)
    weighted = design * weights[:, :, None]
    normal = np.einsum("nki,nkj->nij", weighted, design)
    # Slopes are damped: far from all measurements a node gets their mean, not an extrapolated plane.
    normal[:, 1:, 1:] += (
        np.eye(dimensions) * (_RIDGE + distances[:, :1, None] ** 2) * weights.sum(axis=1)[:, None, None]
    )
    right = np.einsum("nki,nk->ni", weighted, values[neighbours])
    solved = np.linalg.solve(normal, right[:, :, None])[:, 0, 0]
    spread = values[neighbours]
    is_measured = np.abs(offsets[:, 0, :]).max(axis=1) <= _NEAR_KNOTS
    return np.clip(solved, spread.min(axis=1), spread.max(axis=1)), is_measured
