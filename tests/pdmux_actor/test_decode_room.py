"""Past capacity where decode is what is short: each sequence that joins makes the steps of all longer.

On an H200 a step of 64 sequences takes hardly longer than one of eight; on what computes slowly beside its memory, as
CPUs do, it takes several times as long. In virtual time.
"""

from dataclasses import replace
from functools import cache

import pytest
from slo_rig import Client, serve, share_in_time

from pdmux_actor.messages import Slo
from profiler.devices import device_named

H200 = device_named("H200")
SLOW = replace(H200, peak_flops_per_s=H200.peak_flops_per_s / 40, gemm_tile_tokens=1)
SLO = Slo(ttft_s=1.5, tbt_s=0.06)
CAPACITY_PER_S = 11.0  # of which all are in time


def chats(load: float, *, slo: Slo = SLO, until_s: float = 16.0) -> Client:
    return Client(
        who="chats", rate_per_s=load * CAPACITY_PER_S, prompt_tokens=20, output_tokens=80, until_s=until_s, slo=slo
    )


@cache  # in virtual time the same load finds the same
def in_time_per_s(load: float) -> float:
    """Of those that come in the last three quarters of 16 seconds."""
    asked = [one for one in serve([chats(load)], device=SLOW)["chats"] if one.at_s >= 4.0]
    return share_in_time(asked) * len(asked) / 12.0


@pytest.mark.parametrize("load", [2.0, 3.0])
def test_decode_bound__past_capacity__as_many_are_in_time_as_at_capacity(load: float) -> None:
    assert in_time_per_s(load) >= 0.95 * in_time_per_s(1.0) >= 0.75 * CAPACITY_PER_S


def test_decode_bound__target_that_no_batch_meets__batches_are_not_kept_small_for_it() -> None:
    slos = Slo(ttft_s=1.5, tbt_s=0.002), Slo(ttft_s=1.5, tbt_s=10.0)
    hopeless, patient = (serve([chats(2.0, slo=slo, until_s=6.0)], device=SLOW, limit_s=12.0)["chats"] for slo in slos)

    assert sum(len(one.token_times_s) for one in hopeless) >= 0.95 * sum(len(one.token_times_s) for one in patient)
