"""What `muxfleet status` says of models that others hold up."""

import pytest
from test_live_fleet import load, model, status, unit

from deploy.commands.fleet_tables import problems
from pdmux_actor.messages import NeighbourLoss, Slo

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
LOST = (
    NeighbourLoss(neighbour="n", ttft_s=9.0, tbt_s=0.5),
    NeighbourLoss(neighbour="o", ttft_s=2.0, tbt_s=0.7),
)


@pytest.mark.parametrize(
    ("ttft_lost_s", "tbt_lost_s", "told"),
    [
        (0.24, 0.024, []),
        (None, None, []),
        (0.4, 0.02, ["m on unit u: a first token loses 400 of 1000 ms to others, most of it to n"]),
        (0.1, 0.04, ["m on unit u: a gap between tokens loses 40 of 100 ms to others, most of it to o"]),
    ],
)
def test_status__neighbours_take_much_of_a_target__says_which(
    ttft_lost_s: float | None, tbt_lost_s: float | None, told: list[str]
) -> None:
    suffering = load("m", ttft_lost_s=ttft_lost_s, tbt_lost_s=tbt_lost_s, lost_to=LOST)

    assert list(problems(status((unit("u", suffering),), models=(model(slo=SLO),)))) == told


def test_status__model_without_a_target__says_nothing() -> None:
    suffering = load("m", ttft_lost_s=9.0, tbt_lost_s=9.0, lost_to=LOST)

    assert list(problems(status((unit("u", suffering),), models=(model(slo=None),)))) == []
