"""The last decisions of a scheduler: what was launched, what was expected of it, what it took."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from pdmux_actor.scheduling.decision import Decision, DecisionKind
from pdmux_actor.scheduling.launch import (
    NUM_LANES,
    Chunk,
    ComputeLaunch,
    DecodeStep,
    DropPrefill,
    Lane,
    LaunchCompletion,
    MixedStep,
    Repartition,
    lane_number,
)
from pdmux_actor.scheduling.sequence import TokenSequence


class DecisionLog:
    """A ring of the newest `max_entries` decisions. It keeps no sequence alive; text is made on reading."""

    def __init__(self, max_entries: int, total_sms: int) -> None:
        self._ring: deque[Decision] = deque(maxlen=max_entries)
        self._num_recorded = 0
        self._in_flight: dict[int, Decision] = {}  # by lane number
        self._num_lanes = NUM_LANES  # that were ever in use
        self._prefill_sms, self._decode_sms = 0, total_sms

    def decisions(self, last: int | None = None) -> list[Decision]:
        """Oldest first; the newest `last`, or all that the ring still holds."""
        skipped = 0 if last is None else max(0, len(self._ring) - last)
        return list(islice(self._ring, skipped, None))

    def since(self, start_s: float) -> list[Decision]:
        """Newest first: all decisions that a launch after `start_s` can have come from."""
        decisions: list[Decision] = []
        earlier: set[tuple[Lane, int]] = set()
        for decision in reversed(self._ring):
            if decision.now_s < start_s and (lane := decision.lane) is not None:
                if (lane, decision.decode_lane) in earlier:
                    continue  # a lane has one launch in flight: this one had ended before
                earlier.add((lane, decision.decode_lane))
            decisions.append(decision)
            if len(earlier) == self._num_lanes:
                break
        return decisions

    def instruct(self, now_s: float, launch: DropPrefill | Repartition) -> None:
        """Logs what takes effect at once and has no completion."""
        batch_id = 0
        if isinstance(launch, Repartition):
            self._prefill_sms, self._decode_sms = launch.prefill_sms, launch.decode_sms
        else:
            batch_id = launch.batch_id
        self._append(
            Decision(
                index=self._num_recorded,
                now_s=now_s,
                kind=DecisionKind.DROP if isinstance(launch, DropPrefill) else DecisionKind.PARTITION,
                prefill_sms=self._prefill_sms,
                decode_sms=self._decode_sms,
                batch_id=batch_id,
            )
        )

    def take_off(
        self,
        now_s: float,
        launch: ComputeLaunch,
        *,
        predicted_s: float,
        ready_s: float | None,
        used_blocks: int,
        decoding_ids: tuple[str, ...] | None = None,
    ) -> None:
        """`decoding_ids` are those of the decoding sequences' requests, where they are known."""
        batch_id = first_layer = last_layer = steps = decode_lane = part_sms = 0
        chunks: Sequence[Chunk] = ()
        decoding: Sequence[TokenSequence] = ()
        if isinstance(launch, DecodeStep):
            kind, decoding, steps = DecisionKind.DECODE, launch.sequences, launch.steps
            if launch.part is not None:
                decode_lane, part_sms = launch.part.index, launch.part.sms
                self._num_lanes = max(self._num_lanes, NUM_LANES + decode_lane)
        elif isinstance(launch, MixedStep):
            kind, chunks, decoding, steps = DecisionKind.MIXED, launch.chunks, launch.sequences, 1
        else:
            kind, chunks, batch_id = DecisionKind.PREFILL, launch.chunks, launch.batch_id
            first_layer, last_layer = launch.first_layer, launch.last_layer
        request_ids = tuple([s.request.request_id for s in decoding]) if decoding_ids is None else decoding_ids
        if chunks:
            request_ids = (*[c.sequence.request.request_id for c in chunks], *request_ids)
        self._in_flight[lane_number(launch)] = self._append(
            Decision(
                index=self._num_recorded,
                now_s=now_s,
                kind=kind,
                prefill_sms=self._prefill_sms,
                decode_sms=self._decode_sms,
                model=launch.model,
                batch_id=batch_id,
                first_layer=first_layer,
                last_layer=last_layer,
                chunks=tuple([(c.start, c.length) for c in chunks]) if chunks else (),
                num_decoding=len(decoding),
                steps=steps,
                decode_lane=decode_lane,
                part_sms=part_sms,
                request_ids=request_ids,
                used_blocks=used_blocks,
                predicted_s=predicted_s,
                ready_s=ready_s,
            )
        )

    def land(self, done: LaunchCompletion) -> None:
        flying = self._in_flight.pop(lane_number(done.launch))
        place = flying.index - self._num_recorded  # from the end
        if -place <= len(self._ring):
            self._ring[place] = msgspec.structs.replace(
                flying, started_s=done.started_s, finished_s=done.finished_s, failed=done.error is not None
            )

    def _append(self, decision: Decision) -> Decision:
        self._ring.append(decision)
        self._num_recorded += 1
        return decision
