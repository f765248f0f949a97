"""Green contexts against a driver that keeps books: what is made is destroyed, what fails is said."""

from enum import Enum
from types import SimpleNamespace

import pytest

from pdmux_actor.errors import PartitioningUnavailable
from pdmux_actor.executor.cuda.green_contexts import GreenContexts

NUM_SMS = 132


class Result(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_SUPPORTED = 801


def sms(count: int) -> SimpleNamespace:
    return SimpleNamespace(sm=SimpleNamespace(smCount=count, minSmPartitionSize=8, smCoscheduledAlignment=8))


class BookkeepingDriver:
    """Answers like cuda.bindings.driver, rounds shares up to 8 SMs, and refuses the call named `broken`."""

    CUresult = Result
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, broken: str = "", breaks_after: int = 0) -> None:
        self.broken, self.calls_left = broken, breaks_after
        self.contexts: dict[int, int] = {}
        self.streams: dict[int, int] = {}
        self.destroyed: list[str] = []
        self._next = 100

    def _answer(self, name: str, *values: object) -> tuple[object, ...]:
        if name == self.broken:
            self.calls_left -= 1
            if self.calls_left < 0:
                return (Result.CUDA_ERROR_NOT_SUPPORTED, *[None for _ in values])
        return (Result.CUDA_SUCCESS, *values)

    def cuDeviceGet(self, index: int) -> tuple[object, ...]:
        return self._answer("cuDeviceGet", index)

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[object, ...]:
        return self._answer("cuDeviceGetDevResource", sms(NUM_SMS))

    def cuDevSmResourceSplitByCount(self, groups: int, all_sms: object, flags: int, least: int) -> tuple[object, ...]:
        given = -(-least // 8) * 8
        return self._answer("cuDevSmResourceSplitByCount", [sms(given)], 1, sms(NUM_SMS - given))

    def cuDevResourceGenerateDesc(self, resources: list, count: int) -> tuple[object, ...]:
        return self._answer("cuDevResourceGenerateDesc", resources[0].sm.smCount)

    def cuGreenCtxCreate(self, descriptor: int, device: int, flags: int) -> tuple[object, ...]:
        answer = self._answer("cuGreenCtxCreate", self._next)
        if answer[0] is Result.CUDA_SUCCESS:
            self.contexts[self._next] = descriptor
            self._next += 1
        return answer

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> tuple[object, ...]:
        self.streams[1000 + context] = priority
        return self._answer("cuGreenCtxStreamCreate", 1000 + context)

    def cuStreamDestroy(self, stream: int) -> tuple[object, ...]:
        del self.streams[stream]
        self.destroyed.append("stream")
        return self._answer("cuStreamDestroy")

    def cuGreenCtxDestroy(self, context: int) -> tuple[object, ...]:
        del self.contexts[context]
        self.destroyed.append("context")
        return self._answer("cuGreenCtxDestroy")


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
