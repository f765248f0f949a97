"""Figures of a simulated run in bounded memory: histograms instead of lists of times."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from traces.report import GAP_SHARE
from traces.timeliness import SloTarget, is_in_time

_LEAST_S, _LARGEST_S, _RATIO = 1e-5, 1e5, 1.004
_LOG_RATIO = math.log(_RATIO)
_NUM_BINS = math.ceil(math.log(_LARGEST_S / _LEAST_S) / _LOG_RATIO)


class Durations:
    """A histogram with bins 0.4 % wide: percentiles are numpy's to 0.2 %, also of few; the mean is exact."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_NUM_BINS, dtype=np.int64)
        self._count = 0
        self.sum_s = 0.0
        self._min_s, self._max_s = math.inf, 0.0

    def add(self, duration_s: float) -> None:
        self._counts[_bin(duration_s)] += 1
        self._count += 1
        self.sum_s += duration_s
        self._min_s, self._max_s = min(self._min_s, duration_s), max(self._max_s, duration_s)

    def add_all(self, durations_s: npt.NDArray[np.float64]) -> None:
        if len(durations_s) == 0:
            return
        bins = (np.log(np.maximum(durations_s, _LEAST_S) / _LEAST_S) / _LOG_RATIO).astype(np.int64)
        np.add.at(self._counts, np.minimum(bins, _NUM_BINS - 1), 1)
        self._count += len(durations_s)
        self.sum_s += float(durations_s.sum())
        self._min_s = min(self._min_s, float(durations_s.min()))
        self._max_s = max(self._max_s, float(durations_s.max()))

    def merge(self, other: "Durations") -> None:
        self._counts += other._counts
        self._count += other._count
        self.sum_s += other.sum_s
        self._min_s, self._max_s = min(self._min_s, other._min_s), max(self._max_s, other._max_s)

    def __len__(self) -> int:
        return self._count

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self._count if self._count else None

    def percentile_s(self, percent: float) -> float | None:
        """Interpolates between two durations, as numpy does: of few, the one below may be far off."""
        if not self._count:
            return None
        rank = percent / 100 * (self._count - 1)
        below = math.floor(rank)
        # Side right: the bin of rank r is the first up to which more than r durations lie.
        bins = np.searchsorted(np.cumsum(self._counts), [below, min(below + 1, self._count - 1)], side="right")
        low_s, high_s = (self._middle_s(int(index)) for index in bins)
        return low_s + (rank - below) * (high_s - low_s)

    def _middle_s(self, index: int) -> float:
        """Of what lies in a bin; no less than the shortest duration, and no more than the longest."""
        return min(self._max_s, max(self._min_s, float(_LEAST_S * _RATIO ** (index + 0.5))))

    def num_beyond(self, limit_s: float) -> int:
        """Durations that are longer, to the width of a bin."""
        return int(self._counts[_bin(limit_s) + 1 :].sum())

    def cdf(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Durations in seconds and the shares of all that are no longer, at the bins that hold any."""
        filled = np.flatnonzero(self._counts)
        shares = np.cumsum(self._counts)[filled] / max(1, self._count)
        middles: npt.NDArray[np.float64] = _LEAST_S * np.power(_RATIO, filled.astype(np.float64) + 0.5)
        return middles, shares


def _bin(duration_s: float) -> int:
    return min(_NUM_BINS - 1, max(0, int(math.log(max(duration_s, _LEAST_S) / _LEAST_S) / _LOG_RATIO)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """None where nothing was measured."""

    mean: float | None
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFigures:
    """Extends `traces.report.Figures` with means, TPOT and E2E; gaps are those of finished requests. `lost` had no end
    when the simulation stopped.

    `tbt_s` is between deliveries, `gap_per_token_s` their sum over all tokens but the first ones. `cut` requests were
    shortened to their model's context, as `muxfleet bench` does.
    `tokens_per_s` counts prompt and output tokens of finished requests.
    """

    requests: int
    finished: int
    rejected: int
    failed: int
    lost: int
    cut: int
    ttft_s: Spread
    tbt_s: Spread
    gap_per_token_s: float | None
    tpot_s: Spread
    e2e_s: Spread
    slo_attainment: float | None
    request_attainment: float | None
    ttft_attainment: float | None
    tbt_attainment: float | None
    output_tokens_per_s: float | None
    tokens_per_s: float | None
    requests_per_s: float | None
    goodput_per_s: float | None
    requests_in_time_per_s: float | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class ModelStatistics:
    """Collects the statistics of one model, or merged over several. `attained` counts as `traces.report.attains` does,
    `in_time` as `traces.timeliness.is_in_time`.
    """

    def __init__(self, target: SloTarget | None = None) -> None:
        self.target = target
        self.ttft, self.tbt, self.tpot, self.e2e = Durations(), Durations(), Durations(), Durations()
        self.ttft_per_token = Durations()  # of the prompt
        self.requests = self.finished = self.rejected = self.failed = self.cut = 0
        self.output_tokens = self.prompt_tokens = 0
        self.attained = self.in_time = self.ttft_attained = 0
        self.gaps = self.gaps_in_time = 0

    def finish(
        self, *, ttft_s: float, gaps_s: Sequence[float], e2e_s: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        """`gaps_s` lie between deliveries: tokens of a look-ahead come together, as in a client's stream."""
        self.finished += 1
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        gaps = np.asarray(gaps_s, dtype=np.float64)
        self.ttft.add(ttft_s)
        self.ttft_per_token.add(ttft_s / max(1, prompt_tokens))
        self.tbt.add_all(gaps)
        self.e2e.add(e2e_s)
        if output_tokens > 1:
            self.tpot.add((e2e_s - ttft_s) / (output_tokens - 1))
        if self.target is None:
            return
        gaps_in_time = int((gaps <= self.target.tbt_s).sum())
        self.gaps += len(gaps)
        self.gaps_in_time += gaps_in_time
        first_in_time = ttft_s <= self.target.ttft_s
        self.ttft_attained += first_in_time
        self.attained += first_in_time and gaps_in_time >= GAP_SHARE * len(gaps)
        self.in_time += is_in_time(ttft_s, gaps_s, self.target)

    def merge(self, other: "ModelStatistics") -> None:
        for mine, theirs in ((self.ttft, other.ttft), (self.tbt, other.tbt), (self.tpot, other.tpot)):
            mine.merge(theirs)
        self.e2e.merge(other.e2e)
        self.ttft_per_token.merge(other.ttft_per_token)
        self.requests += other.requests
        self.finished += other.finished
        self.rejected += other.rejected
        self.failed += other.failed
        self.cut += other.cut
        self.output_tokens += other.output_tokens
        self.prompt_tokens += other.prompt_tokens
        self.attained += other.attained
        self.in_time += other.in_time
        self.ttft_attained += other.ttft_attained
        self.gaps += other.gaps
        self.gaps_in_time += other.gaps_in_time

    def distributions(self, percents: Sequence[float]) -> dict[str, list[float | None]]:
        """Returns the times at these percents of each distribution, for plots."""
        times = {"ttft_s": self.ttft, "tbt_s": self.tbt, "tpot_s": self.tpot}
        found = {name: [t.percentile_s(p) for p in percents] for name, t in times.items() if len(t)}
        return {"percents": list(percents), **found}

    def figures(self, duration_s: float) -> SimulatedFigures:
        """Rates are over `duration_s`, the same window for every model."""

        def per_s(count: float) -> float | None:
            return count / duration_s if duration_s > 0 else None

        requests, later_tokens = self.requests, self.output_tokens - self.finished
        return SimulatedFigures(
            requests=requests,
            finished=self.finished,
            rejected=self.rejected,
            failed=self.failed,
            lost=requests - self.finished - self.rejected - self.failed,
            cut=self.cut,
            ttft_s=_spread(self.ttft),
            tbt_s=_spread(self.tbt),
            gap_per_token_s=self.tbt.sum_s / later_tokens if later_tokens else None,
            tpot_s=_spread(self.tpot),
            e2e_s=_spread(self.e2e),
            slo_attainment=self.attained / requests if requests else None,
            request_attainment=self.in_time / requests if requests else None,
            ttft_attainment=self.ttft_attained / requests if requests else None,
            tbt_attainment=self.gaps_in_time / self.gaps if self.gaps else None,
            output_tokens_per_s=per_s(self.output_tokens),
            tokens_per_s=per_s(self.output_tokens + self.prompt_tokens),
            requests_per_s=per_s(self.finished),
            goodput_per_s=per_s(self.attained),
            requests_in_time_per_s=per_s(self.in_time),
        )


def _spread(durations: Durations) -> Spread:
    return Spread(mean=durations.mean_s, p50=durations.percentile_s(50), p99=durations.percentile_s(99))
