"""LoongServe's elastic instances, two of them, on times computed by hand: an instance takes 1 ms a prompt token, 10 ms
a step, and the link 0.1 s for a prompt's KV.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from test_disaggregated import IDENTITY, TENTH, design, request

from deploy.simulation.engine import EngineDesign
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.registry import FLEET_MODES
from deploy.simulation.fleet_modes.split import Split
from pdmux_actor.messages import GenerateRequest, TokenEvent


def token_times(
    *arrivals: tuple[float, GenerateRequest], instance: EngineDesign | None = None, stops_decode: bool = False
) -> Mapping[str, list[float]]:
    agenda, times = EventQueue(), {r.request_id: list[float]() for _, r in arrivals}

    def told(events: Sequence[TokenEvent]) -> None:
        for event in events:
            assert event.error is None
            times[event.request_id] += [round(agenda.clock.now_s, 6)] * len(event.tokens)

    split = Split(link_bytes_per_s=TENTH, stops_decode=stops_decode)
    unit = FLEET_MODES["loongserve"].make(IDENTITY, instance or design(), split, agenda, told)
    for arrival_s, one in arrivals:
        agenda.at(arrival_s, lambda one=one: unit.submit(one))  # type: ignore[misc]
    while agenda.step():
        pass
    assert not unit.load_report().has_work
    return times


def test_loongserve__idle_instances__share_a_prompt_and_one_of_them_decodes_without_a_transfer() -> None:
    assert token_times((0.0, request("a", max_tokens=3))) == {"a": [0.05, 0.06, 0.07]}


def test_loongserve__prompt_beside_a_decode__has_the_free_instance() -> None:
    times = token_times((0.0, request("a", max_tokens=30)), (0.1, request("z")))
    assert times["a"] == [round(0.05 + 0.01 * i, 6) for i in range(30)]
    assert times["z"] == [0.2, 0.21]


def test_loongserve__all_instances_decode__the_one_with_least_kv_is_emptied_onto_the_other() -> None:
    """When "m" comes "z" has had a first token at 0.2 s and nine steps: 110 tokens take 0.11 s, to 0.405. It joins the
    step of "a" from 0.41 s on, while "m" runs on the instance that it has left.
    """
    arrivals = [(0.0, request("a", max_tokens=60)), (0.1, request("z", max_tokens=12)), (0.295, request("m"))]
    times = token_times(*arrivals)
    assert times["m"] == [0.395, 0.405]
    assert times["z"][8:] == [0.28, 0.29, 0.42, 0.43]
    assert times["a"] == [round(0.05 + 0.01 * i, 6) for i in range(60)]


def test_loongserve__prompts_stop_decode__requests_of_the_instance_with_least_kv_go_on_there_afterwards() -> None:
    """The step of "z" that began at 0.29 s is lost, and is done again from 0.395 s on, with "m"."""
    arrivals = [(0.0, request("a", max_tokens=60)), (0.1, request("z", max_tokens=12)), (0.295, request("m"))]
    times = token_times(*arrivals, stops_decode=True)
    assert times["m"] == [0.395, 0.405]
    assert times["z"][8:] == [0.28, 0.29, 0.405, 0.415]
    assert times["a"] == [round(0.05 + 0.01 * i, 6) for i in range(60)]


def test_loongserve__stopped_instance_has_no_room_for_the_prompt__it_waits_for_an_answers_end() -> None:
    small = replace(design(), total_blocks=40)
    placed = replace(small.models[0], quota_blocks=40)
    arrivals = [(0.0, request("a", max_tokens=60)), (0.1, request("z", max_tokens=12)), (0.295, request("m"))]
    times = token_times(*arrivals, instance=replace(small, models=(placed,)), stops_decode=True)
    assert times["z"][-1] == 0.31
    assert times["m"] == [0.41, 0.42]


def test_loongserve__emptied_instance_has_no_room_elsewhere__prompt_waits_for_an_answers_end() -> None:
    """An instance holds 160 tokens, and each of the two has more than half of that. "z" ends at 0.31 s."""
    small = replace(design(), total_blocks=40)
    placed = replace(small.models[0], quota_blocks=40)
    arrivals = [(0.0, request("a", max_tokens=60)), (0.1, request("z", max_tokens=12)), (0.295, request("m"))]
    times = token_times(*arrivals, instance=replace(small, models=(placed,)))
    assert times["z"][-1] == 0.31
    assert times["m"] == [0.41, 0.42]


def test_loongserve__answer_beside_another_ends__the_other_instance_is_emptied_into_its_room() -> None:
    """An instance holds 260 tokens, "a" and "c" have one. When "a" ends at 0.4 s "m" need not wait for "b" any more."""
    settings = replace(design().settings, max_batch_tokens=200)
    small = replace(design(), total_blocks=65, settings=settings)
    instance = replace(small, models=(replace(small.models[0], quota_blocks=65),))
    pair = [(0.0, request("a", max_tokens=36)), (0.0, request("c", max_tokens=60))]
    times = token_times(*pair, (0.15, request("b", max_tokens=60)), (0.3, request("m")), instance=instance)
    assert times["a"][-1] == 0.4
    assert times["m"] == [0.5, 0.51]


def test_loongserve__prompts_of_one_instant__run_as_one_batch() -> None:
    """On two instances 200 tokens take 0.1 s; both decode where the KV of the batch is."""
    settings = replace(design().settings, max_batch_tokens=200)
    times = token_times((0.0, request("a")), (0.0, request("z")), instance=replace(design(), settings=settings))
    assert times == {"a": [0.1, 0.11], "z": [0.1, 0.11]}


def test_loongserve__prompt_that_came_before__is_computed_again() -> None:
    times = token_times(
        (0.0, request("a")), (1.0, replace(request("b"), prompt_token_ids=request("a").prompt_token_ids))
    )
    assert times["b"] == [1.05, 1.06]
