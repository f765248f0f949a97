"""What replicas bring to their units: summed by the array, it is what each brings by itself."""

import math

import numpy as np
import pytest
from placement_cases import make_model, make_spec, make_unit

from placement.estimation.problem_arrays import Estimator, Instance, make_instance
from placement.estimation.throughput import (
    BATCH,
    BYTES,
    DECODE,
    DECODE_OWN,
    FLOOR,
    KV,
    KV_OWN,
    LOAD,
    MODELS,
    PREFILL,
    PREFILL_SQUARE,
    ROUND,
    ROUND_VARIANCE,
    SLACK,
    STEP,
    TBT,
    KindCosts,
)
from profiler.gpus.a100_80g import DEVICE as A100_80G
from traces.timeliness import SloTarget

RATES_PER_S = (0.0, 1e-9, 0.3, 4.0, 250.0)


def instance() -> Instance:
    models = [
        make_model("small", rate_per_s=2.0, slo=SloTarget(ttft_s=1.0, tbt_s=0.1)),
        make_model("deep", spec=make_spec(num_layers=16), rate_per_s=0.2, tokens=900),
        make_model("impossible", rate_per_s=1.0, slo=SloTarget(ttft_s=1e-9, tbt_s=1e-9)),
    ]
    return make_instance([make_unit(memory_mib=4096, device=A100_80G)], models, Estimator())


@pytest.fixture(scope="module")
def costs() -> KindCosts:
    (of_kind,) = instance().costs
    return of_kind


def test_sums__many_replicas_at_once__each_brings_what_it_brings_alone(costs: KindCosts) -> None:
    models, rates = (a.ravel() for a in np.meshgrid(np.arange(len(costs.runs)), RATES_PER_S, indexing="ij"))

    sums, minima = costs.sums(models, rates), costs.minima(models, rates)

    for model, rate, of_sums, of_minima in zip(models.tolist(), rates.tolist(), sums, minima, strict=True):
        assert costs.sums(model, rate).tobytes() == of_sums.tobytes()
        assert costs.minima(model, rate).tobytes() == of_minima.tobytes()


@pytest.mark.parametrize("rate_per_s", RATES_PER_S)
@pytest.mark.parametrize("model", range(3))
def test_sums__one_replica__are_those_of_the_equations(costs: KindCosts, model: int, rate_per_s: float) -> None:
    tokens_per_s, step_s = rate_per_s * costs.output_tokens[model], costs.decode_s[model]
    prefill_s, share = costs.prefill_s[model], min(1.0, rate_per_s / costs.rates_per_s[model])
    active = 1 - math.exp(-tokens_per_s * 4.0 * step_s)
    decode, kv = tokens_per_s * costs.decode_s_per_sequence[model], tokens_per_s * costs.blocks_per_sequence[model]
    expected = {
        BYTES: costs.resident_bytes[model],
        FLOOR: costs.floor_blocks[model],
        MODELS: 1,
        LOAD: rate_per_s,
        PREFILL: rate_per_s * prefill_s,
        PREFILL_SQUARE: rate_per_s * prefill_s**2 * (1 + share * (costs.arrival_scv[model] - 1)),
        DECODE: decode,
        KV: kv,
        ROUND: step_s * active,
        ROUND_VARIANCE: step_s**2 * active * (1 - active),
        DECODE_OWN: decode * step_s * (1 - active),
        KV_OWN: kv * step_s * (1 - active),
    }

    sums, minima = costs.sums(model, rate_per_s), costs.minima(model, rate_per_s)

    assert dict(enumerate(sums.tolist())) == pytest.approx(expected, rel=1e-6, abs=1e-15)
    assert minima[[TBT, BATCH, STEP]].tolist() == [costs.tbt_s[model], -tokens_per_s, -step_s]
    assert minima[SLACK:].tolist() == costs.slack_s[model].tolist()


def test_instance__targets_that_no_unit_meets__are_left_out_of_what_units_carry() -> None:
    made = instance()
    (costs,) = made.costs
    model = made.index["impossible"]

    assert made.hopeless == {model}
    assert float(costs.factor(costs.sums(model, 0.1), costs.minima(model, 0.1))) > 0
