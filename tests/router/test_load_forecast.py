"""When a model that no unit has ready will be: in virtual time."""

from dataclasses import replace

import pytest
from fleet_values import fleet, model_load, unit

from pdmux_actor.lease import LoadProgress, LoadStage, ModelPhase
from router.admission.load_forecast import LoadForecast
from router.view import FleetView, ModelCard, ModelLoadTimes, UnitView


def loading(done: int | None = None, *, total: int = 100, stage: LoadStage = LoadStage.READING, **at) -> UnitView:
    made = unit(at.get("name", "u"), model_load(at.get("model", "llama")), phase=ModelPhase.LOADING, reports_load=False)
    progress = None if done is None else LoadProgress(stage=stage, done_bytes=done, total_bytes=total)
    statuses = tuple(replace(s, progress=progress) for s in made.report.models)
    return replace(made, report=replace(made.report, models=statuses))


def view(*units: UnitView, seconds: float | None = None) -> FleetView:
    times = () if seconds is None else (ModelLoadTimes(model="llama", loads=2, seconds=2 * seconds),)
    return replace(fleet(*units, models=("llama",)), load_times=times)


def text(forecast: LoadForecast, now_s: float) -> str | None:
    outlook = forecast.outlook("llama", now_s)
    return None if outlook is None else outlook.text()


def test_load__bytes_come_at_a_pace__says_share_and_when_it_is_ready() -> None:
    forecast = LoadForecast()
    forecast.update(view(loading(3)), 0.0)
    assert text(forecast, 0.0) == "loading llama 3 %"  # no pace yet

    forecast.update(view(loading(43)), 8.0)  # 5 per second; 57 are left, and a second to start
    assert text(forecast, 8.0) == "loading llama 43 %, ready in about 12 s"
    assert forecast.outlook("llama", 8.0).headers() == {
        "x-muxfleet-load-stage": "loading",
        "x-muxfleet-load-percent": "43",
        "x-muxfleet-ready-in-s": "12",
    }
    forecast.update(view(loading(43)), 10.0)  # a large tensor is on its way
    assert text(forecast, 10.0) == "loading llama 43 %, ready in about 10 s"


def test_load__bytes_stop_coming__says_so_and_not_that_it_is_nearly_ready() -> None:
    forecast = LoadForecast()
    for now_s, done in ((0.0, 3), (8.0, 43)):
        forecast.update(view(loading(done)), now_s)
    for now_s in (15.0, 20.0, 49.0):
        forecast.update(view(loading(43)), now_s)

    assert text(forecast, 15.0) == "loading llama 43 %, ready in about 5 s"
    assert text(forecast, 19.5) == "loading llama 43 %, no byte for 10 s"
    assert text(forecast, 49.0) == "loading llama 43 %, no byte for 40 s"
    assert "x-muxfleet-ready-in-s" not in forecast.outlook("llama", 49.0).headers()
    forecast.update(view(loading(53)), 50.0)  # a byte a second now
    assert text(forecast, 50.0) == "loading llama 53 %, ready in about 48 s"


def test_load__all_bytes_are_there_and_the_engine_does_not_start__says_no_longer_when() -> None:
    forecast = LoadForecast()
    for now_s, done in ((0.0, 0), (10.0, 100)):
        forecast.update(view(loading(done)), now_s)
    assert text(forecast, 10.5) == "loading llama 100 %, ready in about 1 s"
    assert text(forecast, 60.0) == "loading llama 100 %"


def test_load__graphs_are_captured__is_the_start_that_follows_the_last_byte() -> None:
    forecast = LoadForecast()
    for now_s, done in ((0.0, 0), (10.0, 100)):
        forecast.update(view(loading(done)), now_s)
    forecast.update(view(loading(100, stage=LoadStage.CAPTURING)), 10.5)
    assert text(forecast, 10.5) == "loading llama 100 %, ready in about 1 s"
    forecast.update(view(unit("u", model_load("llama"))), 22.0)

    forecast.update(view(loading(100, stage=LoadStage.CAPTURING)), 30.0)

    assert text(forecast, 30.0) == "loading llama 100 %, ready in about 12 s"  # as long as before


def test_units__one_stalls__the_other_is_waited_for() -> None:
    forecast = LoadForecast()
    for now_s, stalled, going in ((0.0, 0, 0), (9.0, 90, 10), (18.0, 90, 20)):
        forecast.update(view(loading(stalled, name="stalled"), loading(going, name="going")), now_s)
    assert text(forecast, 18.0) == "loading llama 20 %, ready in about 73 s"


def test_load__one_has_ended_before__its_start_counts_in_the_next() -> None:
    forecast = LoadForecast()
    forecast.update(view(loading(0)), 0.0)
    forecast.update(view(loading(100)), 10.0)
    forecast.update(view(unit("u", model_load("llama"))), 17.0)
    assert forecast.outlook("llama", 17.0) is None  # it is ready

    forecast.update(view(loading(0)), 20.0)
    forecast.update(view(loading(50)), 25.0)
    assert text(forecast, 25.0) == "loading llama 50 %, ready in about 12 s"
    forecast.update(view(loading(100)), 30.0)
    assert text(forecast, 33.0) == "loading llama 100 %, ready in about 4 s"


def test_load__unit_tells_no_bytes__goes_by_the_loads_before() -> None:
    forecast = LoadForecast()
    forecast.update(view(loading()), 0.0)
    assert text(forecast, 0.0) == "loading llama"
    forecast.update(view(loading(), seconds=20.0), 4.0)
    assert text(forecast, 4.0) == "loading llama, ready in about 16 s"
    assert text(forecast, 30.0) == "loading llama"  # overdue: nobody knows


def test_download__model_was_loaded_before__the_reading_that_follows_counts() -> None:
    forecast = LoadForecast()
    for now_s, done in ((0.0, 0), (10.0, 25)):
        forecast.update(view(loading(done, stage=LoadStage.DOWNLOADING), seconds=8.0), now_s)
    assert text(forecast, 10.0) == "downloading llama 25 %, ready in about 38 s"

    forecast.update(view(loading(0), seconds=8.0), 40.0)  # reads: the pace of the download is no longer its
    assert text(forecast, 40.0) == "loading llama 0 %"


def test_wake__out_of_host_memory__takes_what_the_unit_said() -> None:
    forecast = LoadForecast()
    forecast.update(view(unit("u", model_load("llama"), wake_s=6.0)), 0.0)
    assert forecast.outlook("llama", 0.0) is None  # nobody is on the way
    forecast.update(view(loading()), 1.0)
    assert text(forecast, 2.0) == "waking llama, ready in about 5 s"


def test_units__several_load_it__the_one_that_is_ready_first_is_told() -> None:
    forecast = LoadForecast()
    forecast.update(view(loading(0, name="slow"), loading(0, name="quick")), 0.0)
    forecast.update(view(loading(60, name="slow", total=600), loading(50, name="quick")), 5.0)
    assert text(forecast, 5.0) == "loading llama 50 %, ready in about 6 s"


def test_adapter__its_base_loads__waits_for_that() -> None:
    forecast = LoadForecast()
    shown = view(loading(0))
    card = shown.models[0]
    adapter = ModelCard(model="poet", source="s", revision=None, slo=card.slo, created_s=0, adapter_of="llama")
    for now_s, done in ((0.0, 0), (5.0, 50)):
        forecast.update(replace(view(loading(done)), models=(card, adapter)), now_s)
    outlook = forecast.outlook("poet", 5.0)
    assert outlook is not None
    assert outlook.text() == "loading poet 50 %, ready in about 6 s"


@pytest.mark.parametrize("leaving", [True, False])
def test_unit__is_leaving__is_not_waited_for(leaving: bool) -> None:
    forecast = LoadForecast()
    gone = loading(10)
    forecast.update(view(replace(gone, report=replace(gone.report, is_leaving=leaving))), 0.0)
    assert (forecast.outlook("llama", 0.0) is None) == leaving
