"""Several models decode at once on the CUDA executor."""

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt, outputs
from cuda_rig import make_cuda_rig

from pdmux_actor.scheduling.launch import DecodePart, DecodeStep, Repartition
from pdmux_actor.scheduling.sequence import TokenSequence

NEW_TOKENS = 3


def test_decode__two_models_at_once__have_graphs_of_their_sms_and_tokens_as_in_serial(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    models = sorted(tiny_checkpoints)[:2]

    def started(rig: CpuRig) -> dict[str, list[TokenSequence]]:
        for model in models:
            rig.load(model, tiny_checkpoints[model])
        sequences = {m: [rig.sequence(m, make_prompt(4 + i), NEW_TOKENS) for i in range(2)] for m in models}
        for of_model in sequences.values():
            rig.prefill(of_model)
        return sequences

    serial, rig = make_cuda_rig(), make_cuda_rig()
    expected, sequences = started(serial), started(rig)
    for of_model in expected.values():
        serial.decode(of_model, NEW_TOKENS - 1)

    rig.executor.submit(Repartition(prefill_sms=0, decode_sms=4))
    for turn in range(NEW_TOKENS - 1):
        for index, model in enumerate(models):
            part = DecodePart(index, 2 * ((index + turn) % 2), 2)  # they change places
            rig.executor.submit(DecodeStep(model=model, sequences=tuple(sequences[model]), part=part))
        assert len(rig.executor._in_flight) == 2
        done = rig.executor.wait(None)
        assert [completion.launch.model for completion in done] == models
        for completion in done:
            rig.apply(completion)

    assert {m: outputs(sequences[m], NEW_TOKENS) for m in models} == {
        m: outputs(expected[m], NEW_TOKENS) for m in models
    }
    while rig.executor._capture_planned():  # of what the steps lacked
        pass
    places = {(key.model, key.first_sm, key.sms) for key in rig.executor._graphs._graphs}
    assert places == {(model, first_sm, 2) for model in models for first_sm in (0, 2)}
    with pytest.raises(AssertionError, match="exceeds"):
        rig.executor.submit(DecodeStep(model=models[0], sequences=(), part=DecodePart(1, 3, 2)))
