"""WindServe's dispatch of prompts to decode engines, on times computed by hand: 1 ms a prompt token, 10 ms a step, on
all SMs; half of them take twice as long. The link takes 0.1 s for a prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from test_disaggregated import IDENTITY, TENTH, design, request

from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.registry import FLEET_MODES
from deploy.simulation.fleet_modes.split import Split
from pdmux_actor.messages import GenerateRequest, Slo, TokenEvent
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.latency import ChunkShape
from profiler.specs import ModelSpec


class BySms:
    """A latency model in which everything takes as long as SMs are few."""

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return 1e-3 * sum(chunk.new_tokens for chunk in chunks) * A100_80G.num_sms / sms

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return 0.01 * A100_80G.num_sms / sms

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)


def asked(name: str, *, max_tokens: int = 2, tbt_s: float = 10.0) -> GenerateRequest:
    """It wants its first token after 0.15 s, so it cannot wait for another prompt."""
    return replace(request(name, max_tokens=max_tokens), slo=Slo(ttft_s=0.15, tbt_s=tbt_s))


def token_times(
    mode: str, *arrivals: tuple[float, GenerateRequest], num_sms: int = A100_80G.num_sms
) -> Mapping[str, list[float]]:
    agenda, times = EventQueue(), {r.request_id: list[float]() for _, r in arrivals}

    def told(events: Sequence[TokenEvent]) -> None:
        for event in events:
            times[event.request_id] += [round(agenda.clock.now_s, 6)] * len(event.tokens)

    split = Split(link_bytes_per_s=TENTH)
    on = replace(design(), latency=BySms(), device=replace(A100_80G, num_sms=num_sms, partition_granularity_sms=1))
    unit = FLEET_MODES[mode].make(IDENTITY, on, split, agenda, told)
    for arrival_s, one in arrivals:
        agenda.at(arrival_s, lambda one=one: unit.submit(one))  # type: ignore[misc]
    while agenda.step():
        pass
    assert not unit.load_report().has_work
    return times


def test_windserve__prompt_that_would_wait__runs_beside_decode_and_sends_nothing() -> None:
    """The second of three would be there at 0.2 s: it runs on the idle decode GPU. A third finds that one taken."""
    times = token_times("windserve", (0.0, asked("a")), (0.0, asked("h")), (0.0, asked("z")))
    assert times["a"] == [0.1, 0.21]
    assert times["h"] == [0.1, 0.11]
    assert times["z"][0] == 0.2
    waiting = token_times("disaggregated", (0.0, asked("a")), (0.0, asked("h")))
    assert waiting["h"][0] == 0.2


def test_windserve__prompt_beside_decode__both_have_half_of_the_gpu() -> None:
    """Request a decodes from 0.2 s on. At 0.215 s two prompts come: the second takes 0.2 s beside it, and steps that
    start meanwhile take 20 ms.
    """
    times = token_times("windserve", (0.0, asked("a", max_tokens=6)), (0.215, asked("h")), (0.215, asked("z")))
    assert times["a"] == [0.1, 0.21, 0.22, 0.24, 0.26, 0.28]
    assert times["h"][0] == 0.315
    assert times["z"][0] == 0.415


def test_windserve__decode_without_slack__prompt_waits_for_the_prefill_engine() -> None:
    """A step on half of the SMs takes 20 ms, and 15 ms are wanted."""
    tight = {"tbt_s": 0.015}
    times = token_times(
        "windserve",
        (0.0, asked("a", max_tokens=9, **tight)),
        (0.215, asked("h", **tight)),
        (0.215, asked("z", **tight)),
    )
    assert times["a"] == [0.1, 0.21, 0.22, 0.23, 0.24, 0.25, 0.26, 0.27, 0.28]
    assert times["z"][0] == 0.415


def test_windserve__device_of_one_core__has_no_half_to_judge_by() -> None:
    arrivals = [(0.0, asked("a", max_tokens=4)), (12.0, asked("h")), (12.0, asked("z"))]

    times = token_times("windserve", *arrivals, num_sms=1)

    assert [len(times[name]) for name in "ahz"] == [4, 2, 2]
