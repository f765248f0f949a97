"""Links on which KV crosses from engine to engine, one transfer at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedKv:
    """KV of a prompt whose prefill ran from `begun_s` to `done_s`, layer by layer."""

    num_bytes: float
    num_layers: int
    begun_s: float
    done_s: float


class KvLinks:
    """A transfer holds the sender's port out and the receiver's port in until its last byte is there; later ones wait.

    With `layerwise` a layer's KV is on its way as soon as it is computed: the transfer starts after the first layer and
    ends no earlier than one layer's KV after the last. That a prefix was cached, and so ready before, is not used.
    """

    def __init__(self, *, bytes_per_s: float, layerwise: bool) -> None:
        self._bytes_per_s = bytes_per_s
        self._layerwise = layerwise
        self._out_free_s: dict[int, float] = {}
        self._in_free_s: dict[int, float] = {}

    def arrival_s(self, sender: int, receiver: int, kv: ComputedKv) -> float:
        """Returns when the last byte is there, and keeps both ports until then."""
        whole_s = kv.num_bytes / self._bytes_per_s
        free_s = max(self._out_free_s.get(sender, 0.0), self._in_free_s.get(receiver, 0.0))
        if self._layerwise:
            first_layer_s = kv.begun_s + (kv.done_s - kv.begun_s) / kv.num_layers
            there_s = max(max(first_layer_s, free_s) + whole_s, kv.done_s + whole_s / kv.num_layers)
        else:
            there_s = max(kv.done_s, free_s) + whole_s
        self._out_free_s[sender] = self._in_free_s[receiver] = there_s
        return there_s
