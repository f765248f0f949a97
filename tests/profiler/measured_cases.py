"""Measurements made up from a known law, for tests of what is fitted to them."""

import itertools
from collections.abc import Callable, Iterator

from profiler.measurement import Measurement
from profiler.probe import LaunchShape
from profiler.specs import ModelSpec

SMALL = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=128,
    intermediate_size=384,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=640,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    dtype="float32",
)


def shapes(sms: int) -> Iterator[LaunchShape]:
    for new_tokens, context_tokens in itertools.product((16, 64, 256, 1024), (0, 128, 1024)):
        yield LaunchShape(sms=sms, prompts=1, new_tokens=new_tokens, context_tokens=context_tokens)
    for sequences, depth in itertools.product((1, 4, 16, 64), (16, 128, 1024)):
        yield LaunchShape(sms=sms, sequences=sequences, depth=depth)
    for new_tokens, context_tokens, sequences, depth in itertools.product((16, 64, 256), (0, 256), (1, 32), (64, 512)):
        yield LaunchShape(
            sms=sms,
            prompts=1,
            new_tokens=new_tokens,
            context_tokens=context_tokens,
            sequences=sequences,
            depth=depth,
        )


def eq_1_and_2(launch: LaunchShape) -> float:
    """MuxWise's equations; a fused step has one constant."""
    batch, speed = launch.features, launch.sms
    prefill_s = (2e-9 * batch.prefill_squares + 3e-9 * batch.prefill_products + 4e-6 * batch.prefill_tokens) / speed
    return prefill_s + 1e-8 * batch.decode_tokens + 2e-5 * batch.decode_sequences + 1e-3


def measured(law_s: Callable[[LaunchShape], float], *shares: int) -> list[Measurement]:
    return [
        Measurement(launch=launch, seconds=law_s(launch), high_s=law_s(launch), repeats=1)
        for sms in shares
        for launch in shapes(sms)
    ]
