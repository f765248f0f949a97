"""The order in which a bucket computes a batch: whoever was in its last one keeps the place that the device knows.

When one sequence of a batch ends, all behind it move up in the launch's order. At the places of before, what was sent
for them stays true.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.sequence import TokenSequence

Batch = tuple[TokenSequence, ...]


class BatchOrder:
    def __init__(self) -> None:
        self._launched: Batch = ()
        self._ordered: Batch = ()

    def of(self, sequences: Batch) -> Batch:
        """Returns the same sequences, without gaps: those that are new, or were beyond the end of this batch, take the
        places that have become free. The same batch again gets the same answer.
        """
        if self._launched == sequences:
            return self._ordered
        here = set(sequences)
        kept = [sequence if sequence in here else None for sequence in self._ordered[: len(sequences)]]
        here.difference_update(sequence for sequence in kept if sequence is not None)
        others = iter([sequence for sequence in sequences if sequence in here])
        ordered = [next(others) if sequence is None else sequence for sequence in kept]
        self._launched, self._ordered = sequences, (*ordered, *others)
        return self._ordered


def places_in(ordered: Sequence[TokenSequence], sequences: Sequence[TokenSequence]) -> list[int]:
    """Returns where each of `sequences` is among `ordered`."""
    places = {sequence: place for place, sequence in enumerate(ordered)}
    return [places[sequence] for sequence in sequences]
