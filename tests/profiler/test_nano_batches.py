"""Steps whose operators overlap, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from model_shapes import LLAMA_3_8B

from profiler.gpus.h100 import DEVICE as H100
from profiler.latency import ChunkShape, overlapped_s
from profiler.nano_batches import LayerWork, Speeds, layer_s, speeds_of
from profiler.roofline import RooflineLatency

# Half of the SMs read at 80 % of the speed and leave the products half of theirs; all of them leave nothing.
HALF = Speeds(memory=0.8, compute_beside=0.5, compute_beside_links=0.75)
ALL = Speeds(memory=1.0, compute_beside=0.0, compute_beside_links=0.75)


def test_layer__products_and_reads__overlap_as_worked_out() -> None:
    """C = 10, M = 4, no links, B = 6, k = 2. With half: t_M = 4 / 0.8 = 5, of which products lose half, 2.5, so
    T = max(10 + 2.5, 5, 6, 15 / 2) = 12.5. With all: 10 + 4 = 14.
    """
    work = LayerWork(compute_s=10, memory_s=4, network_s=0, traffic_s=6)

    assert layer_s(work, [HALF], 2) == pytest.approx(12.5)
    assert layer_s(work, [ALL], 2) == pytest.approx(14.0)
    assert layer_s(work, [HALF, ALL], 2) == pytest.approx(12.5)


def test_layer__all_reduces_too__hide_behind_products() -> None:
    """As before and N = 2: products lose 2 (1 - 0.75) = 0.5 more, T = 13 where one after the other takes 16."""
    work = LayerWork(compute_s=10, memory_s=4, network_s=2, traffic_s=6)

    assert layer_s(work, [HALF, ALL], 2) == pytest.approx(13.0)
    assert layer_s(work, [HALF, ALL], 1) == pytest.approx(16.0)  # one nano-batch: nothing to overlap with


def test_layer__bound_by_what_is_read__is_no_faster_than_the_bandwidth() -> None:
    """C = 3, M = 3, B = 7: products that mostly load weights cannot read beside attention. At T = 7 the bandwidth is
    full, although 3 + 3 (0.5) / 0.8 = 4.9 would be over sooner.
    """
    work = LayerWork(compute_s=3, memory_s=3, network_s=0, traffic_s=7)

    assert layer_s(work, [HALF], 2) == pytest.approx(7.0)


def test_speeds__device_of_eight_sms__are_its_own_curves() -> None:
    """With a saturation share of 1 / (2 ln 4) half of the SMs draw (1 - 1/4) / (1 - 1/16) = 0.8 of the bandwidth."""
    device = replace(H100, num_sms=8, bandwidth_saturation_share=0.36067376, compute_scaling_exponent=1.0)

    speeds = tuple(speeds_of(device, 8))

    assert len(speeds) == 8
    assert speeds[3] == pytest.approx((0.8, 0.5, 0.875))
    assert speeds[7] == pytest.approx((1.0, 0.0, 0.875))


def test_step__many_prompt_tokens_beside_many_decodes__gains_and_decode_alone_loses() -> None:
    """Llama-3-8B on an H100. A large batch overlaps; a step of decodes alone reads 15 GB of weights twice."""
    latency, contexts = RooflineLatency(H100), [2000] * 128

    def gain(chunks: list[ChunkShape]) -> float:
        fused_s = latency.mixed_s(LLAMA_3_8B, chunks, contexts, 132)
        return fused_s / overlapped_s(latency, LLAMA_3_8B, chunks, contexts, 132, nano_batches=2)

    assert 1.05 < gain([ChunkShape(1920)]) < 1.6
    assert gain([]) < 0.9


def test_step__mesh_of_eight__hides_all_reduces() -> None:
    """A mesh has links to hide as well: the gain is larger than on one GPU."""
    chunks, contexts = [ChunkShape(1920)], [2000] * 128
    gains = []
    for num_gpus in (1, 8):
        latency = RooflineLatency(H100, num_gpus=num_gpus)
        together_s = overlapped_s(latency, LLAMA_3_8B, chunks, contexts, 132, nano_batches=2)
        gains.append(latency.mixed_s(LLAMA_3_8B, chunks, contexts, 132) / together_s)

    assert gains[1] > gains[0]


class FusedOnly:
    """A latency model that knows no operators."""

    def prefill_s(self, spec: object, chunks: object, sms: int) -> float:
        return 1.0

    def decode_s(self, spec: object, context_tokens: object, sms: int) -> float:
        return 2.0

    def mixed_s(self, spec: object, chunks: object, context_tokens: object, sms: int) -> float:
        return 3.0


def test_overlapped__model_without_operators__takes_the_fused_step() -> None:
    assert overlapped_s(FusedOnly(), LLAMA_3_8B, [ChunkShape(8)], [9], 132, nano_batches=2) == 3.0
