"""Tests that `make test` leaves to `make test-long`: they take longest, mostly by waiting. CI leaves them out, too."""

from collections.abc import Sequence

# Beginnings of ids, and what remains of it in `make test`.
LONG: Sequence[str] = (
    # Deadlines of Serve and of the engine's watch run out; the same parts are killed in `make test`.
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[unit_out_of_memory]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[telemetry_cut]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[engine_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[actor_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[controller_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[two_units_killed]",
    "tests/chaos/test_chaos.py::test_sleeper__",
    # Real engines, processes and SDKs: what they meet is in the gateway's and the units' own tests.
    "tests/clients/",
    "tests/chaos/test_poison_request.py",
    # Ray starts six more times.
    "tests/e2e/test_serve_deploy.py",
    "tests/e2e/test_supervision.py",
    "tests/pdmux_actor/serving/test_actor.py",
    # Bodies by the hundred at every endpoint; single ones of each kind stay, and so do malformed ones.
    "tests/router/test_openapi_document.py::test_api__generated_cases",
    "tests/router/test_adversarial_bodies.py",
    # A copy of the tree and a wheel, used from processes of their own.
    "tests/test_extending.py",
    "tests/test_packages_of_others.py",
    # Triton compiles for GPUs that are not there; sm_80 stays.
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[89]",
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[90]",
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[100]",
    # Chromium before a real fleet; what the pages are told, and their files, stay.
    "tests/console/test_console_demo.py",
    # Benchmarks for GPUs, run to their end on the CPU.
    "tests/pdmux_actor/cuda/test_gpu_benchmarks.py",
    "tests/pdmux_actor/cuda/test_gpu_goodput.py",
)


def is_long(nodeid: str) -> bool:
    return nodeid.startswith(tuple(LONG))
