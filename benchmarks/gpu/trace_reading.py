"""What a profile of the hot path must not hold, and where its time went. Reads torch.profiler's Chrome traces."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

Event = Mapping[str, Any]

# Names as CUPTI gives them, some with a version behind: cudaMalloc_v3020.
FORBIDDEN_CALLS: Mapping[str, str] = MappingProxyType(
    {
        "cudaMalloc": "allocates device memory",
        "cuMemAlloc": "allocates device memory",
        "cudaFree": "waits for the device",
        "cuMemFree": "waits for the device",
        "cudaHostAlloc": "allocates pinned memory",
        "cudaMallocHost": "allocates pinned memory",
        "cudaDeviceSynchronize": "waits for the device",
        "cudaStreamSynchronize": "waits for the device",
        "cudaEventSynchronize": "waits for the device",
        "cuStreamSynchronize": "waits for the device",
        "cuCtxSynchronize": "waits for the device",
        "cudaMemcpy": "a synchronising copy",
        "cuModuleLoadData": "loads a kernel",
        "cudaStreamBeginCapture": "captures a graph",
        "cudaGraphInstantiate": "captures a graph",
        "aten::item": "reads a value from the device",
        "aten::_local_scalar_dense": "reads a value from the device",
        "aten::nonzero": "waits for a size from the device",
    }
)
_HOST_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "cpu_op"})
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def within(events: Sequence[Event], name: str) -> list[Event]:
    """What began while the host was in torch.profiler.record_function(name). The profiler itself waits for the device
    before and after.
    """
    span = next(e for e in events if e.get("name") == name and e.get("cat") == "user_annotation")
    return [e for e in events if e.get("ph") == "X" and span["ts"] <= e["ts"] <= span["ts"] + span["dur"]]


def faults(events: Iterable[Event]) -> dict[str, int]:
    """How often the trace holds each call that has no place in the hot path, and copies through pageable memory."""
    found: Counter[str] = Counter()
    for event in events:
        if event.get("ph") != "X":
            continue
        name, category = str(event.get("name")), event.get("cat")
        if category in _HOST_CATEGORIES and name.split("_v")[0] in FORBIDDEN_CALLS:
            found[name.split("_v")[0]] += 1
        if category == "gpu_memcpy" and "pageable" in name.lower():
            found[name] += 1
    return dict(found)


def kernel_times_s(events: Iterable[Event]) -> dict[str, float]:
    """Device seconds by kernel, the longest first."""
    times: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _DEVICE_CATEGORIES:
            times[str(event["name"])] += event["dur"] / 1e6
    return dict(times.most_common())


def busy_shares(events: Sequence[Event]) -> dict[str, float]:
    """Of the time between the first and the last kernel on the device, the share during which each stream had one."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _DEVICE_CATEGORIES:
            spans[str(event["args"]["stream"])].append((event["ts"], event["ts"] + event["dur"]))
    if not spans:
        return {}
    first = min(start for of_stream in spans.values() for start, _ in of_stream)
    last = max(end for of_stream in spans.values() for _, end in of_stream)
    return {stream: _covered(of_stream) / (last - first) for stream, of_stream in spans.items()}


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
