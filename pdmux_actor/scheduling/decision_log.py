"""The last decisions of a scheduler, with what each was given."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pdmux_actor.scheduling.launch import DecodeStep, DropPrefill, Launch, MixedStep, PrefillSlice, Repartition


@dataclass(frozen=True, slots=True)
class Decision:
    now_s: float
    launch: str
    request_ids: tuple[str, ...]


class DecisionLog:
    """A ring of the newest `max_entries` launches, as text: it keeps no sequence alive."""

    def __init__(self, max_entries: int) -> None:
        self._ring: deque[Decision] = deque(maxlen=max_entries)

    def record(self, now_s: float, launches: Iterable[Launch]) -> None:
        self._ring.extend(_describe(now_s, launch) for launch in launches)

    def decisions(self) -> list[Decision]:
        return list(self._ring)


def _describe(now_s: float, launch: Launch) -> Decision:
    match launch:
        case PrefillSlice(batch_id=batch_id, model=model, chunks=chunks, first_layer=first, last_layer=last):
            spans = ",".join(f"{c.start}+{c.length}" for c in chunks)
            text, sequences = f"prefill {model} batch {batch_id} layers [{first},{last}) tokens {spans}", chunks
            return Decision(now_s, text, tuple(c.sequence.request.request_id for c in sequences))
        case DecodeStep(model=model, sequences=running, steps=steps):
            return Decision(now_s, f"decode {model} x{steps}", tuple(s.request.request_id for s in running))
        case MixedStep(model=model, chunks=chunks, sequences=running):
            spans = ",".join(f"{c.start}+{c.length}" for c in chunks)
            ids = [c.sequence.request.request_id for c in chunks] + [s.request.request_id for s in running]
            return Decision(now_s, f"mixed {model} tokens {spans} decodes {len(running)}", tuple(ids))
        case DropPrefill(batch_id=batch_id):
            return Decision(now_s, f"drop batch {batch_id}", ())
        case Repartition(prefill_sms=prefill_sms, decode_sms=decode_sms):
            return Decision(now_s, f"partition prefill {prefill_sms} decode {decode_sms}", ())
