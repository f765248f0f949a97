"""Events of a scheduler that hypothesis draws: requests, aborts, quotas, policies, a model that goes."""

from collections.abc import Callable, Sequence

from engine_rig import TOTAL_BLOCKS, VirtualEngine, make_request
from hypothesis import strategies as st

from pdmux_actor.messages import GenerateRequest
from pdmux_actor.scheduling.events import Abort, Arrival, Event, RemoveModel, SetPolicy, SetQuotas
from pdmux_actor.scheduling.policies.registry import POLICIES


def drawn_steps(
    *, models: str, most_output_tokens: int, kinds: Sequence[object], most_aborted: int, most_steps: int
) -> st.SearchStrategy:
    """`kinds`: of requests, which `timed_events` is told what to make of."""
    arrival = st.tuples(
        st.just("arrive"),
        st.sampled_from(models),
        st.integers(1, 120),
        st.integers(1, most_output_tokens),
        st.sampled_from([0.003, 0.5]),
        st.sampled_from(kinds),
    )
    others = (
        st.tuples(st.just("abort"), st.integers(0, most_aborted)),
        st.tuples(st.just("quota"), st.sampled_from("abc"), st.integers(0, 200)),
        st.tuples(st.just("policy"), st.sampled_from(sorted(POLICIES))),
        st.tuples(st.just("remove"), st.just("c")),
    )
    return st.lists(st.one_of(arrival, *others), min_size=1, max_size=most_steps)


def timed_events(
    steps: Sequence[tuple], gap_s: float, of_kind: Callable[[GenerateRequest, object], GenerateRequest]
) -> tuple[list[tuple[float, Event]], list[GenerateRequest]]:
    """The steps as events, `gap_s` apart, and the requests among them."""
    events, requests = list[tuple[float, Event]](), list[GenerateRequest]()
    for i, step in enumerate(steps):
        match step:
            case ("arrive", model, prompt, output, tbt_s, kind):
                request = make_request(f"r{len(requests)}", model, prompt, output, first=len(requests), tbt_s=tbt_s)
                requests.append(of_kind(request, kind))
                events.append((gap_s * i, Arrival(requests[-1])))
            case ("abort", number):
                events.append((gap_s * i, Abort(f"r{number}")))
            case ("quota", model, blocks):
                events.append((gap_s * i, SetQuotas({model: blocks})))
            case ("policy", name):
                events.append((gap_s * i, SetPolicy(name)))
            case ("remove", model):
                events.append((gap_s * i, RemoveModel(model)))
    return events, requests


def check_ends_and_blocks(engine: VirtualEngine, requests: Sequence[GenerateRequest]) -> None:
    """Every request ended once, and said nothing after it; all blocks are free or cached."""
    for request in requests:
        ends = engine.ends_of(request.request_id)
        assert len(ends) == 1, request
        assert engine.token_events.index(ends[0]) == max(
            i for i, e in enumerate(engine.token_events) if e.request_id == request.request_id
        )
    report = engine.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == TOTAL_BLOCKS
