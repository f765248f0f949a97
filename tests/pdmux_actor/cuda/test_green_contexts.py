"""Green contexts against a driver that keeps books: what is made is destroyed, what fails is said."""

import pytest
import torch
from bookkeeping_driver import NUM_SMS, BookkeepingDriver

from pdmux_actor.errors import PartitioningUnavailable
from pdmux_actor.executor.cuda.green_contexts import GreenContexts


def test_pairs__several_shares__are_disjoint_and_fill_the_device() -> None:
    driver = BookkeepingDriver()

    with GreenContexts(driver, 0) as contexts:
        pairs = contexts.pairs((16, 64, 112))
        assert contexts.resource.num_sms == NUM_SMS
        assert contexts.resource.step_sms == 8
        assert [(p.decode_sms, p.prefill_sms) for p in pairs] == [(16, 116), (64, 68), (112, 20)]
        assert len({p.decode_stream for p in pairs} | {p.prefill_stream for p in pairs}) == 6
        assert [driver.streams[p.decode_stream] for p in pairs] == [-1, -1, -1]


def test_close__after_use__streams_go_before_contexts() -> None:
    driver = BookkeepingDriver()
    contexts = GreenContexts(driver, 0)
    contexts.pairs((16, 32))

    contexts.close()
    contexts.close()

    assert (driver.contexts, driver.streams) == ({}, {})
    assert driver.destroyed == ["stream"] * 4 + ["context"] * 4


def test_pairs__driver_fails_midway__nothing_is_left_and_the_error_names_the_call() -> None:
    driver = BookkeepingDriver(broken="cuGreenCtxCreate", breaks_after=3)

    with pytest.raises(PartitioningUnavailable, match=r"cuGreenCtxCreate: .*NOT_SUPPORTED.*driver of release 550"):
        GreenContexts(driver, 0).pairs((16, 32))

    assert (driver.contexts, driver.streams) == ({}, {})


def test_green_contexts__no_libcuda__is_unavailable_with_a_remedy() -> None:
    class DriverWithoutLibrary(BookkeepingDriver):
        def cuDeviceGet(self, index: int) -> tuple[object, ...]:
            raise RuntimeError("Failed to dlopen libcuda.so.1")  # as cuda.bindings answers

    with pytest.raises(PartitioningUnavailable, match=r"cuDeviceGet: Failed to dlopen libcuda.so.1; install"):
        GreenContexts(DriverWithoutLibrary(), 0)


def test_pairs__nearly_all_sms_for_decode__leave_prefill_the_least_partition() -> None:
    with GreenContexts(BookkeepingDriver(), 0) as contexts:
        (pair,) = contexts.pairs((128,))

    assert (pair.decode_sms, pair.prefill_sms) == (120, 12)


def test_pair_for_prefill__few_sms__are_a_group_and_decode_has_the_rest_and_priority() -> None:
    driver = BookkeepingDriver()

    with GreenContexts(driver, 0) as contexts:
        pair = contexts.pair_for_prefill(16)
        assert (pair.prefill_sms, pair.decode_sms) == (16, 116)
        assert (driver.streams[pair.prefill_stream], driver.streams[pair.decode_stream]) == (0, -1)

    assert (driver.contexts, driver.streams) == ({}, {})


def test_bindings__installed__have_what_the_bookkeeping_driver_answers_for() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

    calls = [name for name in dir(BookkeepingDriver) if name.startswith("cu")]
    assert len(calls) == 8
    assert [name for name in calls if not callable(getattr(driver, name, None))] == []
    assert int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM) == 1
    assert int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING) == 1
    assert driver.CUdevResource().sm.smCount == 0
    assert int(driver.CUstream(12345)) == 12345
    assert driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM != driver.CUresult.CUDA_SUCCESS


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_green_contexts__installed_bindings_without_a_gpu__are_unavailable() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

    with pytest.raises(PartitioningUnavailable, match=r"cuDeviceGet: .*; install"):
        GreenContexts(driver, 0)
