"""What one client, one model or one prompt may cost the others: two points of their requests in time at most.

In virtual time, Llama 8B on an H200. A request is in time when its first token and every gap are.
"""

import pytest
from slo_rig import Asked, Client, serve, share_in_time, share_of_first_in_time

from pdmux_actor.messages import Slo

MOST_LOST = 0.02  # of the others' requests in time
DEFAULT_SLO = Slo(ttft_s=2.0, tbt_s=0.2)


def chats(rate_per_s: float = 8.0, **changes) -> Client:
    return Client(**{"who": "chats", "rate_per_s": rate_per_s, **changes})


def lost_by(others: Client, *offenders: Client, instead_of: tuple[Client, ...] = (), models=("m",)) -> float:
    """How much of the others' attainment goes when the offenders come, instead of someone who asks for the usual."""
    before = serve([others, *instead_of], models=models)[others.who]
    after = serve([others, *offenders], models=models)[others.who]
    return share_in_time(before) - share_in_time(after)


@pytest.mark.parametrize("ttft_s", [1e-6, 0.01])
def test_unattainable_ttft__of_a_client__others_are_served_before_it(ttft_s: float) -> None:
    offender = Client(who="header", rate_per_s=4.0, prompt_tokens=3000, slo=Slo(ttft_s=ttft_s, tbt_s=0.05))
    patient = Client(who="header", rate_per_s=4.0, prompt_tokens=3000)

    assert lost_by(chats(), offender, instead_of=(patient,)) <= MOST_LOST


@pytest.mark.parametrize("tbt_s", [0.008, 0.012])
def test_header__one_clients_tight_target__costs_the_others_nothing(tbt_s: float) -> None:
    """Of a key that may ask for it: attainable for a request alone, not in the batch."""
    tight = Client(who="key", rate_per_s=1.0, slo=Slo(ttft_s=1.0, tbt_s=tbt_s))
    usual = Client(who="key", rate_per_s=1.0)

    assert lost_by(chats(12.0), tight, instead_of=(usual,)) <= MOST_LOST


@pytest.mark.parametrize("rate_per_s", [10.0, 14.0])
def test_long_prompts_among_chats__past_capacity__first_tokens_in_time_stay_level(rate_per_s: float) -> None:
    """What cannot be served in time any more stands behind what can."""
    long = Client(who="long", rate_per_s=0.05 * rate_per_s, prompt_tokens=16_000)
    asked = together(serve([chats(0.95 * rate_per_s), long]))

    assert share_of_first_in_time(asked) >= 0.9


def test_second_tokens__tight_target_near_capacity__requests_are_in_time_not_only_gaps() -> None:
    asked = serve([chats(22.0, slo=Slo(ttft_s=1.0, tbt_s=0.03), output_tokens=80)])["chats"]

    assert share_in_time(asked) >= 0.98


def test_default_targets__chat_near_capacity__mux_is_level_with_tuned_chunked_prefill() -> None:
    asked = {
        policy: serve([chats(26.0, slo=DEFAULT_SLO)], policy=policy)["chats"] for policy in ("mux", "chunked_prefill")
    }
    assert share_in_time(asked["mux"]) >= share_in_time(asked["chunked_prefill"]) - MOST_LOST


def together(served) -> list[Asked]:
    return [one for asked in served.values() for one in asked]
