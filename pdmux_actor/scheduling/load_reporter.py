"""Defines what a unit says of itself, a few times a second."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.messages import LaunchStatus, LoadReport, ModelLoad, NeighbourLoss
from pdmux_actor.scheduling.adapters import Adapters
from pdmux_actor.scheduling.bubbles import lane_shares
from pdmux_actor.scheduling.decision import Decision
from pdmux_actor.scheduling.decision_log import DecisionLog
from pdmux_actor.scheduling.launch import FIRST_DECODE_LANE, ComputeLaunch, Lane, lane_number
from pdmux_actor.scheduling.neighbour_slowdown import NeighbourSlowdown
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.served_counts import ServedCounts
from pdmux_actor.scheduling.unit_parts import UnitParts
from profiler.latency import ChunkShape

_DECISIONS_WINDOW_S = 2.0
_COUNTS_WINDOW_S = 10.0
_SHORT_TOKENS, _LONG_TOKENS = 64, 1024  # between which a prefill's time is taken as a line


class _Counts(msgspec.Struct, frozen=True, gc=False):
    """One model's totals at an instant."""

    at_s: float
    prompt_tokens: int
    prefix_hit_tokens: int
    output_tokens: int
    first_tokens: int
    first_tokens_met: int
    gaps: int
    gaps_met: int
    requests: int
    requests_met: int
    ttft_lost_s: float
    tbt_lost_s: float

    @classmethod
    def of(
        cls,
        counts: ServedCounts,
        now_s: float,
        *,
        others: Collection[ServedCounts] = (),
        lost_to: Collection[NeighbourLoss] = (),
    ) -> "_Counts":
        """Leaves out what `others` have counted."""
        left = counts.without(others) if others else counts
        return cls(
            at_s=now_s,
            prompt_tokens=left.prompt_tokens,
            prefix_hit_tokens=left.prefix_hit_tokens,
            output_tokens=left.output_tokens,
            first_tokens=left.first_tokens,
            first_tokens_met=left.first_tokens_met,
            gaps=left.gaps,
            gaps_met=left.gaps_met,
            requests=left.requests,
            requests_met=left.requests_met,
            ttft_lost_s=sum([loss.ttft_s for loss in lost_to]),
            tbt_lost_s=sum([loss.tbt_s for loss in lost_to]),
        )

    def is_less_than(self, before: "_Counts") -> bool:
        return (
            self.prompt_tokens < before.prompt_tokens
            or self.output_tokens < before.output_tokens
            or self.first_tokens < before.first_tokens
            or self.requests < before.requests
        )


class _Recent(NamedTuple):
    """Ratios and rates of a model's last seconds, as of ModelLoad."""

    prefix_hit_ratio: float
    ttft_attainment: float | None
    tbt_attainment: float | None
    request_attainment: float | None
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_lost_s: float | None
    tbt_lost_s: float | None


class LoadReporter:
    """Costs the engine a few additions per token; the rest is paid per report. `report` moves the window of counts."""

    def __init__(
        self, parts: UnitParts, pool: BlockPool, neighbours: NeighbourSlowdown, log: DecisionLog, adapters: Adapters
    ) -> None:
        self._queues = parts.queues
        self._batches = parts.batches
        self._lanes = parts.lanes
        self._predictor = parts.predictor
        self._num_sms = parts.device.num_sms
        self._pool = pool
        self._neighbours = neighbours
        self._log = log
        self._adapters = adapters
        self._history: dict[tuple[str, str], deque[_Counts]] = {}  # of queues, and of their models and adapters

    def report(self, steps_total: int, now_s: float) -> LoadReport:
        queues, since_s = self._queues.values(), now_s - _DECISIONS_WINDOW_S
        decisions = self._log.since(since_s)
        shares = lane_shares(decisions, since_s, now_s)
        predicted_s, achieved_s = _decode_means(decisions)
        tightest_s = min((queue.tightest_tbt_s for queue in queues), default=float("inf"))
        return replace(
            self.report_of_models(steps_total, now_s),
            prefill_bubble_share=shares[Lane.PREFILL].bubble,
            decode_bubble_share=shares[Lane.DECODE].bubble,
            decode_launches_at_once=shares[Lane.DECODE].mean_launches,
            decode_predicted_s=predicted_s,
            decode_achieved_s=achieved_s,
            decode_headroom=1.0 - achieved_s / tightest_s if achieved_s and tightest_s != float("inf") else None,
            launches=tuple(
                LaunchStatus(
                    lane=_lane_name(flight.launch),
                    took_off_s=flight.took_off_s,
                    expected_s=flight.expected_s,
                    is_learned=self._predictor.has_measured(flight.launch),
                )
                for flight in self._lanes.flights()
            ),
            steps=tuple(s for queue in queues for s in self._predictor.measured.of(queue.model, self._num_sms)),
        )

    def report_of_models(self, steps_total: int, now_s: float) -> LoadReport:
        """Leaves out how lanes were used, and what their launches took."""
        queues, partition = self._queues.values(), self._lanes.partition
        kept = {(q.model, name) for q in queues for name in ("", q.model, *q.adapter_counts)}
        self._history = {key: history for key, history in self._history.items() if key in kept}
        lost = self._neighbours.losses([queue.model for queue in queues])
        return LoadReport(
            models=tuple(
                load
                for queue in queues
                for load in self._models(queue, lost[queue.model], partition.prefill_sms, partition.decode_sms, now_s)
            ),
            total_blocks=self._pool.total_blocks,
            free_blocks=self._pool.free_blocks,
            cached_blocks=self._pool.cached_blocks,
            prefill_sms=partition.prefill_sms,
            decode_sms=partition.decode_sms,
            steps_total=steps_total,
            guard_cells_moved_total=self._predictor.guard.cells_moved,
        )

    def _models(
        self,
        queue: ModelQueue,
        lost_to: tuple[NeighbourLoss, ...],
        prefill_sms: int,
        decode_sms: int,
        now_s: float,
    ) -> Sequence[ModelLoad]:
        """Of the model, and of each of its adapters. What neighbours cost them is told of the model."""
        base_s, per_token_s = self._prefill_line(queue, prefill_sms or self._num_sms, beside=bool(queue.running))
        decode_step_s = self._decode_step_s(queue, decode_sms or self._num_sms)
        recent = self._recent((queue.model, ""), _Counts.of(queue.counts, now_s, lost_to=lost_to))
        in_batches = self._batches.sequences(queue.model)
        giving_way = sum(s.gives_way for s in (*queue.sequences(), *in_batches))
        whole = _load(queue, (base_s, per_token_s), decode_step_s, lost_to, recent, giving_way)
        of_others, loads = queue.counts_of_others, list[ModelLoad]()
        if not of_others:
            return (whole,)
        for load in self._adapters.split(whole, queue, in_batches):
            counts = queue.adapter_counts.get(load.model)
            own = _Counts.of(queue.counts, now_s, others=of_others) if counts is None else _Counts.of(counts, now_s)
            recent = self._recent((queue.model, load.model), own)
            loads.append(
                replace(
                    load,
                    **{**recent._asdict(), "ttft_lost_s": whole.ttft_lost_s, "tbt_lost_s": whole.tbt_lost_s},
                    prefill_base_s=base_s,
                    prefill_s_per_token=per_token_s,
                    decode_step_s=whole.decode_step_s if load.running else 0.0,
                )
            )
        return loads

    def _recent(self, key: tuple[str, str], now: _Counts) -> _Recent:
        history = self._history.setdefault(key, deque())
        if history and now.is_less_than(history[-1]):
            history.clear()  # it left and came back between two reports, and counts from nothing
        history.append(now)
        while history[0].at_s < now.at_s - _COUNTS_WINDOW_S and len(history) > 2:
            history.popleft()
        then = history[0]
        window_s = max(now.at_s - then.at_s, 1e-9) if len(history) > 1 else float("inf")
        return _Recent(
            prefix_hit_ratio=_share(
                now.prefix_hit_tokens - then.prefix_hit_tokens, now.prompt_tokens - then.prompt_tokens
            )
            or 0.0,
            ttft_attainment=_share(now.first_tokens_met - then.first_tokens_met, now.first_tokens - then.first_tokens),
            tbt_attainment=_share(now.gaps_met - then.gaps_met, now.gaps - then.gaps),
            request_attainment=_share(now.requests_met - then.requests_met, now.requests - then.requests),
            prompt_tokens_per_s=(now.prompt_tokens - then.prompt_tokens) / window_s,
            output_tokens_per_s=(now.output_tokens - then.output_tokens) / window_s,
            ttft_lost_s=_mean(now.ttft_lost_s - then.ttft_lost_s, now.first_tokens - then.first_tokens),
            tbt_lost_s=_mean(now.tbt_lost_s - then.tbt_lost_s, now.gaps - then.gaps),
        )

    def _prefill_line(self, queue: ModelQueue, sms: int, *, beside: bool) -> tuple[float, float]:
        short_s, long_s = (
            self._predictor.prefill_s(queue.model, queue.info.spec, [ChunkShape(n)], sms, beside_decode=beside)
            for n in (_SHORT_TOKENS, _LONG_TOKENS)
        )
        per_token_s = max(0.0, (long_s - short_s) / (_LONG_TOKENS - _SHORT_TOKENS))
        return max(0.0, short_s - _SHORT_TOKENS * per_token_s), per_token_s

    def _decode_step_s(self, queue: ModelQueue, sms: int) -> float:
        contexts = queue.context_tokens
        return self._predictor.decode_s(queue.model, queue.info.spec, contexts, sms) if contexts else 0.0


def _load(
    queue: ModelQueue,
    prefill_line: tuple[float, float],
    decode_step_s: float,
    lost_to: tuple[NeighbourLoss, ...],
    recent: _Recent,
    giving_way: int,
) -> ModelLoad:
    usage = queue.pool.usage(queue.model)
    return ModelLoad(
        model=queue.model,
        running=queue.num_resident,
        waiting=len(queue.waiting),
        used_blocks=usage.used_blocks,
        quota_blocks=usage.quota_blocks,
        borrowed_blocks=usage.borrowed_blocks,
        cached_blocks=usage.cached_blocks,
        prefix_hit_tokens_total=queue.counts.prefix_hit_tokens,
        preemptions_total=queue.counts.preemptions,
        prompt_tokens_total=queue.counts.prompt_tokens,
        output_tokens_total=queue.counts.output_tokens,
        waiting_tokens=queue.waiting_tokens(),
        requests_ended_total=queue.counts.requests,
        requests_in_time_total=queue.counts.requests_met,
        blocks_per_row=queue.info.geometry.blocks_per_row,
        tokens_per_row=queue.info.geometry.tokens_per_row,
        prefill_base_s=prefill_line[0],
        prefill_s_per_token=prefill_line[1],
        decode_step_s=decode_step_s,
        lost_to=lost_to,
        giving_way=giving_way,
        **recent._asdict(),
    )


def _lane_name(launch: ComputeLaunch) -> str:
    """No two launches in flight are on one lane."""
    number = lane_number(launch)
    return launch.lane.value if number <= FIRST_DECODE_LANE else f"{launch.lane.value} {number}"


def _share(part: int, whole: int) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


def _mean(total_s: float, count: int) -> float | None:
    return max(0.0, total_s) / count if count > 0 else None


def _decode_means(decisions: Sequence[Decision]) -> tuple[float, float]:
    """Predicted and achieved seconds per decode step."""
    steps, predicted_s, achieved_s = 0, 0.0, 0.0
    for decision in decisions:
        taken = decision.steps  # 0 of what is no decode step
        if taken and decision.finished_s is not None and decision.started_s is not None:
            steps += taken
            predicted_s += decision.predicted_s
            achieved_s += decision.finished_s - decision.started_s
    return (predicted_s / steps, achieved_s / steps) if steps else (0.0, 0.0)
