"""Demand that repeats is foreseen by what came at the same time of the seasons before."""

import msgspec
import pytest

from placement.scaling.seasonal_forecast import ExpectedRate, Season, SeasonalForecast, season_of_arrivals

DAY_S = 86400.0
MONDAY_S = 4 * DAY_S
LOOK_S = 60.0


def busy_from_eight_to_six(of_day_s: float) -> float:
    return 2.0 if 8 * 3600 <= of_day_s < 18 * 3600 else 0.5


class Watch:
    """A forecast that hears every minute of requests that come by the clock."""

    def __init__(self, known: Season | None = None) -> None:
        self.forecast = SeasonalForecast(known or Season(season_s=DAY_S))
        self.now_s = MONDAY_S
        self.total = 0.0
        self.forecast.note({"a": 0}, self.now_s)

    def pass_by(self, hours: float, times: float = 1.0) -> None:
        for _ in range(round(hours * 3600 / LOOK_S)):
            self.total += times * busy_from_eight_to_six(self.now_s % DAY_S) * LOOK_S
            self.now_s += LOOK_S
            self.forecast.note({"a": round(self.total)}, self.now_s)

    def expected(self, ahead_s: float) -> ExpectedRate | None:
        return self.forecast.highest("a", self.now_s, ahead_s)


def arrivals(days: int, every_s: float = 20.0) -> list[float]:
    return [t * every_s for t in range(int(days * DAY_S / every_s))]


def test_forecast__no_season_has_passed__says_nothing_of_what_it_has_not_seen() -> None:
    watch = Watch()
    watch.pass_by(6)

    assert watch.forecast.highest("a", watch.now_s + 3600, 300.0) is None


def test_forecast__second_day__knows_of_the_morning_before_it_comes_and_of_the_evening() -> None:
    watch = Watch()
    watch.pass_by(24 + 7)

    night = watch.expected(600.0)
    morning = watch.expected(3600.0 + 900.0)
    assert night is not None
    assert morning is not None
    assert night.rate_per_s == pytest.approx(0.5, rel=0.05)
    assert morning.rate_per_s == pytest.approx(2.0, rel=0.05)
    assert (night.seasons, morning.within_s) == (2, 4500.0)
    watch.pass_by(12)
    evening = watch.expected(600.0)
    assert evening is not None
    assert evening.rate_per_s == pytest.approx(0.5, rel=0.05)


def test_forecast__busier_day_than_those_before__expects_as_much_more_of_its_rest() -> None:
    watch = Watch()
    watch.pass_by(24)
    watch.pass_by(6, times=1.4)

    expected = watch.expected(3 * 3600.0)

    assert expected is not None
    assert expected.rate_per_s == pytest.approx(2.8, rel=0.1)


def test_forecast__nobody_looked_for_hours__what_came_meanwhile_is_no_rate() -> None:
    watch = Watch()
    watch.pass_by(24)
    watch.now_s += 6 * 3600
    watch.total += 1e6
    watch.forecast.note({"a": round(watch.total)}, watch.now_s)
    watch.pass_by(1)

    expected = watch.expected(300.0)

    assert expected is not None
    assert expected.rate_per_s < 1.0


def test_forecast__what_another_goes_on_with__says_the_same() -> None:
    watch = Watch()
    watch.pass_by(24 + 7)

    written = msgspec.json.encode(watch.forecast.known)
    heir = SeasonalForecast(msgspec.json.decode(written, type=Season))

    told, before = heir.highest("a", watch.now_s, 4500.0), watch.expected(4500.0)
    assert told is not None
    assert before is not None
    assert told.rate_per_s == pytest.approx(before.rate_per_s, rel=0.05)


def test_season__trace_of_two_days__is_their_mean_and_begins_when_it_is_said_to() -> None:
    second_day = [t for t in arrivals(2) if t >= DAY_S or int(t / 20) % 2]

    season = season_of_arrivals(DAY_S, {"a": second_day})

    assert set(season.seen) == {2}
    assert season.rates_per_s["a"] == pytest.approx([0.0375] * 96, abs=0.001)  # of 0.025 and 0.05


def test_season__trace_of_an_afternoon__knows_nothing_of_the_rest() -> None:
    afternoon = [t for t in arrivals(1) if t < 6 * 3600]

    forecast = SeasonalForecast(season_of_arrivals(DAY_S, {"a": afternoon}, starts_s=12 * 3600.0))

    found = forecast.highest("a", MONDAY_S + 13 * 3600, 60.0)
    assert found is not None
    assert found.rate_per_s == pytest.approx(0.05, rel=0.05)
    assert forecast.highest("a", MONDAY_S + 20 * 3600, 60.0) is None
    assert forecast.highest("b", MONDAY_S + 13 * 3600, 60.0) is None


def test_season__trace_that_ends_where_a_bin_begins__its_last_arrival_is_in_no_bin_without_time() -> None:
    """The last one lies in the first bin of the next day, behind all that was looked at."""
    whole_day = [10.0 * n for n in range(8641)]

    season = season_of_arrivals(DAY_S, {"a": whole_day})

    assert season.rates_per_s["a"] == pytest.approx([0.1] * len(season.seen))
