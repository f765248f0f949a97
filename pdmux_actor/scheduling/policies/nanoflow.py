"""NanoFlow (OSDI'25, arXiv:2408.12757): decodes and prompt chunks fill one dense batch, whose nano-batches overlap.

Running sequences come first, and prompts are cut so as to fill what they leave of the batch (§4.5). The paper searches
the size of the batch offline for throughput and names 2,048 tokens for Llama-2-70B; here it is `max_batch_tokens`. A
step without prompts is cut in two like any other, so that it reads the weights twice, as the paper's engine does.

What overlap saves is the latency model's to say (profiler/nano_batches.py), so it is seen in the simulator. An engine
has no kernels for it and runs the same batches as fused steps. The paper serves one model; several take turns.
"""

from collections.abc import Sequence

from pdmux_actor.scheduling.policies.base import Action, ContinuePrefill, Mixed, RoundRobin, UnitState
from pdmux_actor.scheduling.policies.entry import PolicyEntry

_NANO_BATCHES = 2


class NanoFlow:
    target_aware = False

    def __init__(self) -> None:
        self._turn = RoundRobin()

    def choose(self, state: UnitState, now_s: float) -> Sequence[Action]:
        if not state.idle:
            return ()
        if state.batch is not None:  # left over from another policy
            return (ContinuePrefill(state.batch.layers_left, state.total_sms),)
        model = self._turn.take(q.model for q in state.queues.values() if q.running or state.prefillable(q))
        if model is None:
            return ()
        return (Mixed(model, state.settings.max_batch_tokens, state.total_sms, nano_batches=_NANO_BATCHES),)


POLICY = PolicyEntry(
    name="nanoflow",
    rule="decode first, prompt chunks fill a batch of `engine.max_batch_tokens`, cut into two nano-batches whose "
    "operators overlap: in the simulator; an engine runs the same batches without overlap",
    source="NanoFlow §4",
    make=NanoFlow,
    fuses=True,
)
