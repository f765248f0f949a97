import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_shapes import LLAMA_3_8B

from profiler.devices import DEVICES, laptop_cpu
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.gpus.h200 import DEVICE as H200
from profiler.gpus.l40s import DEVICE as L40S
from profiler.gpus.rtx_pro_6000 import DEVICE as RTX_PRO_6000
from profiler.latency import ChunkShape
from profiler.operator_costs import bandwidth, compute_rate, operator_costs
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec, ModelSpec

LAPTOP = laptop_cpu(num_cores=8, memory_bytes=16 * 1024**3)
ALL_DEVICES = (*DEVICES.values(), LAPTOP)

devices = st.sampled_from(ALL_DEVICES)
chunks = st.lists(st.builds(ChunkShape, st.integers(1, 4096), st.integers(0, 16384)), min_size=1, max_size=8)
contexts = st.lists(st.integers(0, 32768), min_size=1, max_size=64)


@given(devices, chunks, contexts, st.data())
def test_roofline__more_of_anything__takes_no_less_time(
    device: DeviceSpec, shapes: list[ChunkShape], context_tokens: list[int], data: st.DataObject
) -> None:
    latency = RooflineLatency(device)
    sms = data.draw(st.integers(1, device.num_sms))
    index = data.draw(st.integers(0, len(shapes) - 1))
    longer = [ChunkShape(c.new_tokens + 16, c.context_tokens) if i == index else c for i, c in enumerate(shapes)]
    deeper = [ChunkShape(c.new_tokens, c.context_tokens + 16) if i == index else c for i, c in enumerate(shapes)]

    base_s = latency.mixed_s(LLAMA_3_8B, shapes, context_tokens, sms)

    assert latency.mixed_s(LLAMA_3_8B, longer, context_tokens, sms) > base_s
    assert latency.mixed_s(LLAMA_3_8B, deeper, context_tokens, sms) >= base_s
    assert latency.mixed_s(LLAMA_3_8B, shapes, [*context_tokens, 0], sms) > base_s
    assert latency.mixed_s(LLAMA_3_8B, shapes, [c + 1 for c in context_tokens], sms) > base_s
    assert latency.prefill_s(LLAMA_3_8B, shapes, sms) < base_s
    assert latency.decode_s(LLAMA_3_8B, context_tokens, sms) < base_s


@given(devices, chunks, contexts, st.data())
def test_roofline__more_sms__are_faster_but_not_more_than_in_proportion(
    device: DeviceSpec, shapes: list[ChunkShape], context_tokens: list[int], data: st.DataObject
) -> None:
    latency = RooflineLatency(device)
    few = data.draw(st.integers(1, device.num_sms))
    many = data.draw(st.integers(few, device.num_sms))

    few_s = latency.mixed_s(LLAMA_3_8B, shapes, context_tokens, few)
    many_s = latency.mixed_s(LLAMA_3_8B, shapes, context_tokens, many)

    assert many_s <= few_s <= many_s * many / few * (1 + 1e-9)


@given(devices, contexts, st.data())
def test_roofline__decode_sum_without_a_loop__equals_the_sum_over_requests(
    device: DeviceSpec, context_tokens: list[int], data: st.DataObject
) -> None:
    sms = data.draw(st.integers(1, device.num_sms))
    latency = RooflineLatency(replace(device, attention_longest_key_s=0.0))  # with prompts only
    as_chunks = [ChunkShape(new_tokens=1, context_tokens=c) for c in context_tokens]

    assert latency.decode_s(LLAMA_3_8B, context_tokens, sms) == pytest.approx(
        latency.prefill_s(LLAMA_3_8B, as_chunks, sms), rel=1e-9
    )


def test_roofline__kernel_that_skips_no_masked_pairs__takes_twice_the_attention_of_a_prompt_without_context() -> None:
    def attention_s(masked_share: float, chunk: ChunkShape) -> float:
        device = replace(A100_80G, attention_masked_share=masked_share, peak_flops_per_s=1e12)  # compute-bound
        without = RooflineLatency(replace(device, attention_compute_share=1e9))
        return RooflineLatency(device).prefill_s(LLAMA_3_8B, [chunk], 108) - without.prefill_s(LLAMA_3_8B, [chunk], 108)

    alone, chunked = ChunkShape(8192), ChunkShape(64, 8128)

    assert attention_s(1.0, alone) == pytest.approx(2 * attention_s(0.0, alone), rel=0.01)
    assert attention_s(1.0, chunked) == pytest.approx(attention_s(0.0, chunked), rel=0.01)


def test_roofline__one_deep_sequence_beside_a_prompt__sets_the_pace_of_the_batch() -> None:
    """Of as many keys in all: spread over many sequences they are read side by side."""
    latency = RooflineLatency(replace(RTX_PRO_6000, attention_longest_key_s=1e-6))
    chunk = [ChunkShape(16)]

    deep_s = latency.mixed_s(LLAMA_3_8B, chunk, [16_000, *[1] * 15], 188)
    even_s = latency.mixed_s(LLAMA_3_8B, chunk, [1001] * 16, 188)

    assert deep_s == pytest.approx(even_s + LLAMA_3_8B.num_layers * 15e-3, rel=0.05)
    assert latency.decode_s(LLAMA_3_8B, [16_000, *[1] * 15], 188) < even_s


def test_roofline__empty_batch__takes_no_time() -> None:
    latency = RooflineLatency(H100)

    assert latency.prefill_s(LLAMA_3_8B, (), sms=132) == 0.0
    assert latency.decode_s(LLAMA_3_8B, (), sms=132) == 0.0


def test_roofline__decode_on_a_fifth_of_the_sms__loses_little_prefill_loses_much() -> None:
    latency = RooflineLatency(H100)

    decode_ratio = latency.decode_s(LLAMA_3_8B, [1024] * 32, 48) / latency.decode_s(LLAMA_3_8B, [1024] * 32, 132)
    prefill_ratio = latency.prefill_s(LLAMA_3_8B, [ChunkShape(2048)], 48) / latency.prefill_s(
        LLAMA_3_8B, [ChunkShape(2048)], 132
    )

    assert decode_ratio < 1.3
    assert prefill_ratio > 2.5


def test_roofline__one_core_of_two__decodes_as_fast_and_prefills_slower() -> None:
    """Measured on two cores: a decode step takes the same time on one; prefill gains 1.75x from the second."""
    latency = RooflineLatency(laptop_cpu(num_cores=2, memory_bytes=8 * 1024**3))
    spec = replace(LLAMA_3_8B, dtype="float32")

    assert latency.decode_s(spec, [128], 1) < 1.03 * latency.decode_s(spec, [128], 2)
    prefill_gain = latency.prefill_s(spec, [ChunkShape(512)], 1) / latency.prefill_s(spec, [ChunkShape(512)], 2)
    assert prefill_gain == pytest.approx(1.75, rel=0.03)


def test_roofline__h200_and_llama_3_8b__stays_near_the_floors() -> None:
    """Floors of one H200: weights and KV over 4.3 TB/s, 16.1 GFLOP a token over 790 TFLOP/s plus attention."""
    latency = RooflineLatency(H200)

    assert 3.5e-3 <= latency.decode_s(LLAMA_3_8B, [1], 132) <= 3.5e-3 * 1.65
    assert 7.5e-3 <= latency.decode_s(LLAMA_3_8B, [1024] * 128, 132) <= 7.5e-3 * 1.45
    assert 41e-3 <= latency.prefill_s(LLAMA_3_8B, [ChunkShape(2048)], 132) <= 42e-3 * 1.1
    assert 165e-3 <= latency.prefill_s(LLAMA_3_8B, [ChunkShape(8192)], 132) <= 180e-3 * 1.15


@pytest.mark.parametrize("device", ALL_DEVICES, ids=lambda d: d.name)
def test_rates__whole_device__are_those_of_the_spec(device: DeviceSpec) -> None:
    assert compute_rate(device, device.num_sms) == pytest.approx(device.peak_flops_per_s)
    assert bandwidth(device, device.num_sms) == pytest.approx(device.memory_bandwidth_bytes_per_s)
    assert device.num_sms > device.partition_granularity_sms > 0
    assert device.source


def test_rates__partition_larger_than_the_device__is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="109 of 108"):
        RooflineLatency(A100_80G).decode_s(LLAMA_3_8B, [1], 109)


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_tensor_parallel__more_gpus__are_faster_by_less_than_their_number(num_gpus: int) -> None:
    one, many = RooflineLatency(H100), RooflineLatency(H100, num_gpus=num_gpus)
    spec = replace(LLAMA_3_8B, num_layers=80, hidden_size=8192, intermediate_size=28672, num_heads=64)

    for work_s in (
        lambda latency: latency.prefill_s(spec, [ChunkShape(4096)], 132),
        lambda latency: latency.decode_s(spec, [2048] * 32, 132),
    ):
        assert work_s(one) / num_gpus < work_s(many) < work_s(one) / num_gpus**0.5


# NCCL's own times, ms, of 16 MiB in half precision on one node (aiconfigurator-core 0.12.0).
@pytest.mark.parametrize(
    ("device", "num_gpus", "measured_ms"),
    [(L40S, 2, 0.85), (L40S, 4, 4.92), (L40S, 8, 19.4), (RTX_PRO_6000, 2, 0.47), (RTX_PRO_6000, 8, 1.25)],
)
def test_tensor_parallel__cards_share_their_links__all_reduces_take_what_was_measured(
    device: DeviceSpec, num_gpus: int, measured_ms: float
) -> None:
    costs = operator_costs(LLAMA_3_8B, device, num_gpus, device.num_sms)
    tokens = 2**24 / (LLAMA_3_8B.hidden_size * LLAMA_3_8B.dtype_bytes)

    assert costs.all_reduce_s(tokens) * 1e3 == pytest.approx(measured_ms, rel=0.2)


def test_tensor_parallel__device_without_links__is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="no links"):
        RooflineLatency(replace(LAPTOP, link_bandwidth_bytes_per_s=0.0), num_gpus=2).decode_s(LLAMA_3_8B, [1], 1)


def test_experts__decode__reads_those_that_are_chosen() -> None:
    """Mixtral: one token reads 2 of 8 experts, a batch of 64 nearly all; compute is that of 2 experts a token."""
    mixtral = replace(LLAMA_3_8B, num_experts=8, experts_per_token=2, expert_intermediate_size=14336)
    latency = RooflineLatency(H200)
    expert_bytes = mixtral.params_per_expert * 2 * mixtral.num_layers

    one_s, many_s = latency.decode_s(mixtral, [1], 132), latency.decode_s(mixtral, [1] * 64, 132)

    read_bytes = (many_s - one_s) * H200.memory_bandwidth_bytes_per_s
    assert read_bytes == pytest.approx(6 * expert_bytes, rel=0.1)
    prefill_s = latency.prefill_s(mixtral, [ChunkShape(16384)], 132)
    assert prefill_s < 2.2 * latency.prefill_s(LLAMA_3_8B, [ChunkShape(16384)], 132)


def test_roofline__ever_new_batches__memory_is_bounded_and_answers_stay() -> None:
    latency = RooflineLatency(H200)
    before_s = latency.prefill_s(LLAMA_3_8B, [ChunkShape(7)], 66), latency.decode_s(LLAMA_3_8B, [5], 66)
    tracemalloc.start()
    for n in range(1, 20_000):
        latency.prefill_s(LLAMA_3_8B, [ChunkShape(n)], 66)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held_bytes < 1 << 20
    assert before_s == (latency.prefill_s(LLAMA_3_8B, [ChunkShape(7)], 66), latency.decode_s(LLAMA_3_8B, [5], 66))


@pytest.mark.parametrize(("weights", "share"), [("int8", 0.9), ("fp8", 0.9), ("int4", 0.4), ("int4_group32", 0.4)])
def test_prefill__of_quantised_weights__takes_what_their_products_take(weights: str, share: float) -> None:
    device = replace(H100, int8_compute_share=0.9, int4_compute_share=0.4)
    prompt = [ChunkShape(new_tokens=4096)]

    def products_s(spec: ModelSpec) -> float:
        """Without attention and the classifier, which are not quantised."""
        whole = RooflineLatency(device).prefill_s(spec, prompt, device.num_sms)
        return whole - RooflineLatency(replace(device, peak_flops_per_s=1e30)).prefill_s(spec, prompt, device.num_sms)

    plain, quantised = products_s(LLAMA_3_8B), products_s(replace(LLAMA_3_8B, weights=weights))

    assert 0.9 / share < quantised / plain < 1.05 / share


def test_decode__of_few_sequences_over_int4__is_bound_by_bytes_until_the_batch_computes_longer() -> None:
    device = replace(H100, int4_compute_share=0.05)
    quantised = replace(LLAMA_3_8B, weights="int4")
    latency = RooflineLatency(device)

    gains = [latency.decode_s(LLAMA_3_8B, [64] * n, 132) / latency.decode_s(quantised, [64] * n, 132) for n in (1, 256)]

    assert gains[0] > 1.5
    assert gains[1] < 1
