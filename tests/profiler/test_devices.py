import pytest

from profiler.devices import DEVICES, device_named
from profiler.errors import UnknownDevice


@pytest.mark.parametrize("name", DEVICES)
def test_device_named__any_case__finds_the_device(name: str) -> None:
    assert device_named(name.lower()) is DEVICES[name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "A100-80G"),
        ("a100 80gb", "A100-80G"),
        ("H100-SXM", "H100"),
        ("NVIDIA H100 80GB", "H100"),
        ("rtx4090", "RTX-4090"),
        ("GB200", "B200"),
    ],
)
def test_device_named__part_of_a_name__names_the_device_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        device_named(name)

    assert caught.value.nearest == meant


def test_device_named__misspelt__names_the_nearest_and_all_known() -> None:
    with pytest.raises(UnknownDevice) as caught:
        device_named("H20O")

    assert caught.value.nearest in {"H200", "H100", "B200"}
    assert "A100-80G" in str(caught.value)


def test_device_named__nothing_alike__still_lists_the_known() -> None:
    with pytest.raises(UnknownDevice) as caught:
        device_named("abacus")

    assert caught.value.nearest is None
    assert "L40S" in str(caught.value)
