"""What tests on a GPU ask a rig to do. The CPU rig runs the same, so that no GPU's time goes to a fault of these."""

from collections.abc import Mapping, Sequence

from cpu_rig import CpuRig, make_prompt, outputs

from pdmux_actor.messages import SampledToken
from pdmux_actor.scheduling.launch import Chunk, MixedStep, PrefillSlice

TOP = 20
VOCABULARY = 128_256  # Llama 3's


def top_after_prefix(rig: CpuRig, model: str, length: int, cached: int) -> Mapping[int, float]:
    """Log-probabilities of the first token after a prompt of which `cached` tokens have their KV already."""
    donor = rig.sequence(model, make_prompt(length), 1)
    rig.prefill([donor])
    asker = rig.sequence(model, make_prompt(length), 1, logprobs=TOP)
    info = rig.infos[model]
    rows = cached // info.geometry.tokens_per_row
    asker.rows[:rows] = donor.rows[:rows]
    start = rows * info.geometry.tokens_per_row
    assert 0 < start < length
    launch = PrefillSlice(
        batch_id=998,
        model=model,
        chunks=(Chunk(asker, start, length - start),),
        first_layer=0,
        last_layer=info.spec.num_layers,
    )
    ((token,),) = rig.run(launch)
    return dict(token.top)


def top_of_chunks(rig: CpuRig, model: str, length: int, chunk_tokens: int) -> Mapping[int, float]:
    """Log-probabilities of the first token after a prompt that was computed in chunks."""
    sequence = rig.sequence(model, make_prompt(length), 1, logprobs=TOP)
    tokens: Sequence[Sequence[SampledToken]] = ()
    for start in range(0, length, chunk_tokens):
        chunk = Chunk(sequence, start, min(chunk_tokens, length - start))
        tokens = rig.run(MixedStep(model=model, chunks=(chunk,), sequences=()))
    ((token,),) = tokens
    return dict(token.top)


def furthest(reports: Mapping[int, float], exact: Mapping[int, float]) -> float:
    both = reports.keys() & exact.keys()
    assert len(both) > TOP // 2
    return max(abs(reports[token] - exact[token]) for token in both)


def drawn_and_greedy(rig: CpuRig, model: str, new_tokens: int, steps: int) -> list[list[int]]:
    settings: Sequence[Mapping[str, object]] = (
        {},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.1, "seed": 6, "top_p": 0.8, "top_k": 40},
    )
    sequences = [rig.sequence(model, make_prompt(7 + i), new_tokens, **s) for i, s in enumerate(settings)]
    rig.prefill(sequences)
    rig.decode(sequences, new_tokens - 1, steps_per_launch=steps)
    return outputs(sequences, new_tokens)
