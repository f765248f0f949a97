"""A prompt longer than what a GPU's memory is planned for is computed in parts, whoever decides."""

from dataclasses import replace

import pytest
from engine_rig import PLAIN, VirtualEngine, make_request

from pdmux_actor.executor.simulated import SimulatedExecutor
from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import Launch, MixedStep, PrefillSlice
from pdmux_actor.scheduling.policies.registry import POLICIES

LONGEST = 48
LONG_PROMPT = 120


class NotingExecutor(SimulatedExecutor):
    """`new_tokens` are those of each launch with chunks."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)
        self.new_tokens: list[int] = []

    def submit(self, launch: Launch) -> None:
        if isinstance(launch, PrefillSlice | MixedStep):
            self.new_tokens.append(sum(chunk.length for chunk in launch.chunks))
        super().submit(launch)


def long_prompts(policy: str, longest_chunk_tokens: int | None) -> VirtualEngine:
    """Of two models, beside one that decodes and before a short one."""
    arrivals = [
        (0.0, make_request("decoding", max_tokens=60)),
        (0.05, make_request("long", prompt_tokens=LONG_PROMPT)),
        (0.05, make_request("of-b", "b", prompt_tokens=LONG_PROMPT, first=2)),
        (0.06, make_request("short", prompt_tokens=20, first=3)),
    ]
    settings = replace(
        PLAIN, max_batch_tokens=LONGEST, longest_chunk_tokens=longest_chunk_tokens, chunk_budget_tokens=16
    )
    events = [(at_s, Arrival(request)) for at_s, request in arrivals]
    return VirtualEngine(
        events,
        policy=policy,
        models="ab",
        quota_blocks=300,
        num_sms=4,
        settings=settings,
        executor_type=NotingExecutor,
    ).run()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_launch__prompts_beyond_the_longest_chunk__has_no_more_new_tokens(policy: str) -> None:
    engine = long_prompts(policy, LONGEST)

    assert max(engine.executor.new_tokens) <= LONGEST
    assert [len(engine.tokens_of(name)) for name in ("decoding", "long", "of-b", "short")] == [60, 4, 4, 4]


def test_launch__chunks_of_any_length__takes_a_prompt_whole() -> None:
    assert max(long_prompts("mux", None).executor.new_tokens) == LONG_PROMPT
