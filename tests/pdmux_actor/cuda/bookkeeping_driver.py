"""A CUDA driver that keeps books: what is made is destroyed, what is illegal is refused."""

from enum import IntEnum
from types import SimpleNamespace

NUM_SMS = 132


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 914


LEAST_SMS = 8


def sms(count: int) -> SimpleNamespace:
    return SimpleNamespace(sm=SimpleNamespace(smCount=count, minSmPartitionSize=8, smCoscheduledAlignment=8))


class BookkeepingDriver:
    """Answers like cuda.bindings.driver on an H200: rounds shares up to 8 SMs, makes no context on fewer, refuses the
    call named `broken` once it was called `breaks_after` times.
    """

    CUresult = Result
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(
        self,
        broken: str = "",
        breaks_after: int = 0,
        num_sms: int = NUM_SMS,
        most_groups: int = 99,
        joins_groups: bool = True,
    ) -> None:
        """`most_groups` that a split makes; `joins_groups`: it admits several resources in one descriptor."""
        self.num_sms, self.most_groups, self.joins_groups = num_sms, most_groups, joins_groups
        self.broken, self.calls_left = broken, breaks_after
        self.contexts: dict[int, int] = {}
        self.streams: dict[int, int] = {}
        self.destroyed: list[str] = []
        self.numbers: list[list[int]] = []  # of the groups of each context, in their split; the remainder is the last
        self.sms_of: dict[int, set[tuple[int, int]]] = {}  # (split, SM) of each context
        self._described: set[tuple[int, int]] = set()
        self._next = 100
        self._splits = 0

    def _answer(self, name: str, *values: object) -> tuple[object, ...]:
        if name == self.broken:
            self.calls_left -= 1
            if self.calls_left < 0:
                return (Result.CUDA_ERROR_NOT_SUPPORTED, *[None for _ in values])
        return (Result.CUDA_SUCCESS, *values)

    def cuDeviceGet(self, index: int) -> tuple[object, ...]:
        return self._answer("cuDeviceGet", index)

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[object, ...]:
        return self._answer("cuDeviceGetDevResource", sms(self.num_sms))

    def cuDevSmResourceSplitByCount(self, groups: int, all_sms: object, flags: int, least: int) -> tuple[object, ...]:
        given = -(-least // 8) * 8
        made, self._splits = min(groups, self.most_groups, self.num_sms // given), self._splits + 1
        parts = [sms(given) for _ in range(made)]
        rest = sms(self.num_sms - made * given)
        first = 0
        for number, part in enumerate([*parts, rest]):
            part.split, part.number = self._splits, number
            part.first_sm, first = first, first + part.sm.smCount
        return self._answer("cuDevSmResourceSplitByCount", parts, made, rest)

    def cuDevResourceGenerateDesc(self, resources: list, count: int) -> tuple[object, ...]:
        num_sms = sum(resource.sm.smCount for resource in resources)
        one_split = len({resource.split for resource in resources}) == 1
        is_refused = count > 1 and not self.joins_groups
        if num_sms < LEAST_SMS or count != len(resources) or not one_split or is_refused:
            return (Result.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, None)
        self.numbers.append([resource.number for resource in resources])
        self._described = {
            (resource.split, sm)
            for resource in resources
            for sm in range(resource.first_sm, resource.first_sm + resource.sm.smCount)
        }
        return self._answer("cuDevResourceGenerateDesc", num_sms)

    def cuGreenCtxCreate(self, descriptor: int, device: int, flags: int) -> tuple[object, ...]:
        answer = self._answer("cuGreenCtxCreate", self._next)
        if answer[0] is Result.CUDA_SUCCESS:
            self.contexts[self._next] = descriptor
            self.sms_of[self._next] = self._described
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
