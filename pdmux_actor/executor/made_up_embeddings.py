"""Embeddings of simulated devices."""

import numpy as np

from pdmux_actor.scheduling.launch import ComputeLaunch, DecodeStep, PrefillSlice
from profiler.specs import ModelSpec


def made_up_embeddings(launch: ComputeLaunch, spec: ModelSpec) -> dict[int, bytes]:
    """Noise that depends on the prompt only."""
    if isinstance(launch, DecodeStep) or (isinstance(launch, PrefillSlice) and launch.last_layer < spec.num_layers):
        return {}
    made: dict[int, bytes] = {}
    for place, chunk in enumerate(launch.chunks):
        if chunk.embedded_token is not None:
            noise = np.random.default_rng(chunk.sequence.request.prompt_token_ids)
            made[place] = noise.standard_normal(spec.hidden_size, dtype=np.float32).astype("<f4").tobytes()
    return made
