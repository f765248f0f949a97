"""One copy of the fleet's news for many gateways."""

from deploy.serve.waiting_gateways import NewsCopies
from router.view import FleetNews, FleetView, read_news


class Clock:
    """Each look takes a hundredth of a second: so long does a copy take to make."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


def news(version: int) -> FleetNews:
    return FleetNews(view=FleetView(models=(), units=(), stream_token=f"t{version}"), version=(version,))


def test_copies__asked_by_several_within_ten_times_what_one_takes__are_made_once() -> None:
    clock = Clock()
    copies = NewsCopies(clock)

    assert copies.copy_for(None) is None
    first = copies.copied(news(1))
    clock.now_s += 0.05
    assert copies.copy_for(None) == copies.copy_for((0,)) == first
    assert read_news(first) == news(1)


def test_copies__gateway_that_has_that_version_or_later__is_told_anew() -> None:
    clock = Clock()
    copies = NewsCopies(clock)
    copies.copy_for(None)
    copies.copied(news(1))

    assert copies.copy_for((1,)) is None
    second = copies.copied(news(2))
    assert read_news(second) == news(2)
    clock.now_s += 0.2
    assert copies.copy_for((1,)) is None
