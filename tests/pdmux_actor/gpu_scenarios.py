"""What tests on a GPU ask a rig to do. The CPU rig runs the same, so that no GPU's time goes to a fault of these."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_rig import CpuRig, make_prompt, outputs

from pdmux_actor.messages import SampledToken
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.launch import Chunk, MixedStep, PrefillSlice

TOP = 20
VOCABULARY = 128_256  # Llama 3's


def write_model(
    folder: Path,
    seed: int,
    *,
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    model_type: str = "llama",
    num_layers: int = 3,
    vocab_size: int = 640,
) -> Path:
    """Two KV heads, and twice the width between an MLP's products. Returns `folder`."""
    shape = CheckpointShape(
        model_type=model_type,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_heads=num_heads,
        num_kv_heads=2,
        head_dim=head_dim,
        vocab_size=vocab_size,
    )
    write_random_checkpoint(folder, shape, seed)
    return folder


def write_large_vocabulary(folder: Path) -> Path:
    return write_model(folder, 2, num_layers=2, hidden_size=64, num_heads=4, head_dim=32, vocab_size=VOCABULARY)


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


def top_of_prompt(rig: CpuRig, model: str, length: int) -> Mapping[int, float]:
    """Log-probabilities of the first token after a prompt beside another one, layer by layer."""
    sequences = [rig.sequence(model, make_prompt(n), 1, logprobs=TOP) for n in (3, length)]
    *slices, last = rig.prefill_slices(sequences, layers_per_slice=1)
    for launch in slices:
        rig.run(launch)
    _, (token,) = rig.run(last)
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
