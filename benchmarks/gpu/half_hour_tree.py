"""What half an hour on a GPU is spent on, or a quarter, and what each finding changes of what comes after it. Runs
nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

Json = Mapping[str, Any]
_FEW_SMS = 8  # that a graph may use beside those of the same kernel launched eagerly
_MANY_QUEUES, _QUEUE_COUNTS = 32, (8, 32, 64)
_SMALL_MODEL = ("--model", "llama-3-1b", "--kv-gib", "8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """`states` of steps by name: done, failed, cut or skipped. `reports`: the files they wrote."""

    states: Mapping[str, str]
    reports: Mapping[str, Json]

    def rows(self, step: str, **wanted: object) -> list[Json]:
        rows = self.reports.get(step, {}).get("rows", ())
        return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]

    def facts(self, step: str) -> Json:
        facts: Json = self.reports.get(step, {}).get("machine", {})
        return facts

    @property
    def leaves_partition(self) -> bool:
        """A replayed graph ran on SMs that its lane does not have."""
        return any(row["graph_sms"] > row["eager_sms"] + _FEW_SMS for row in self.rows("census"))

    @property
    def overlapping(self) -> Sequence[Json]:
        """Pairs of shares that have SMs in common."""
        pairs: Sequence[Json] = self.facts("census").get("combinations", {}).get("overlapping", ())
        return pairs

    @property
    def decodes_eagerly(self) -> bool:
        """Whether measurements must launch decode steps one by one: graphs do not do what they should."""
        return self.leaves_partition or bool(self.facts("floors").get("graphs_that_failed"))

    @property
    def is_partitioned(self) -> bool:
        return bool(self.rows("census"))

    def gave_nothing(self, step: str) -> bool:
        """A step failed without a row: it cannot run here as it is. One row that fails is no reason to give up."""
        return self.states.get(step) == "failed" and not self.rows(step)

    def best_queues(self) -> int:
        """Hardware queues under which a tiny launch and a tiny graph wait least for the other lane."""
        ratios = {n: [max(row["ratio"], row["graph_ratio"]) for row in self.rows(f"queues_{n}")] for n in _QUEUE_COUNTS}
        means = {n: sum(found) / len(found) for n, found in ratios.items() if found}
        best = min(means, key=lambda n: means[n], default=_MANY_QUEUES)
        return best if means.get(_MANY_QUEUES, 0.0) > 1.1 * means.get(best, 0.0) else _MANY_QUEUES


Skips = Callable[[Findings], str]
Adds = Callable[[Findings], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`skips`: why it is left out, empty to run it. `adds`: arguments that follow from what was found. It is begun only
    where `least_s` are left of the call, and gets `most_s`. A step that is cut off is begun `most_tries` times. Without
    one that `is_required` nothing else is run. `environment` is added to that of its process; `keeps_profile`: it
    writes a profile beside its rows.
    """

    part: str
    name: str
    script: str
    arguments: tuple[str, ...] = ()
    least_s: float = 20.0
    most_s: float
    most_tries: int = 2
    is_required: bool = False
    skips: Skips = field(default=lambda found: "")
    adds: Adds = field(default=lambda found: ())
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps_profile: bool = False

    @property
    def keeps_rows(self) -> bool:
        """Whether it writes a file of rows after each, with which it goes on."""
        return self.script not in (PREFLIGHT, TESTS)


PREFLIGHT, TESTS = "preflight.py", "pytest"


def _without_ray(found: Findings) -> str:
    return "" if find_spec("ray") else "no Ray here: carry what collect_wheels.py --fleet packs"


def _passed(found: Findings) -> str:
    return "" if found.states.get("tests") == "failed" else "no test failed"


def _unpartitioned(found: Findings) -> str:
    return "" if found.is_partitioned else "no partitions: the census has no rows"


def _eager(found: Findings) -> tuple[str, ...]:
    return ("--eager",) if found.decodes_eagerly else ()


def _eager_and_fitting(found: Findings) -> tuple[str, ...]:
    """What did not fit for the floors does not fit for a server."""
    return (*_eager(found), *(_SMALL_MODEL if found.gave_nothing("floors") else ()))


def _queues(count: int) -> Step:
    arguments = ("--quick", "--only", "queue", "--queues", str(count))
    return Step(
        part="B",
        name=f"queues_{count}",
        script="questions.py",
        arguments=arguments,
        most_s=40.0,
        skips=_unpartitioned,
    )


def _goodput(part: str, *workloads: str, most_s: float) -> Step:
    named = tuple(argument for workload in workloads for argument in ("--workload", workload))
    return Step(
        part=part,
        name=f"goodput_{workloads[0]}",
        script="goodput.py",
        arguments=("--quick", "--policy", "mux", "--policy", "chunked_prefill", *named),
        least_s=90.0,
        most_s=most_s,
        adds=_eager_and_fitting,
    )


def tree_step(name: str) -> Step:
    return next(step for step in TREE if step.name == name)


# Names each, and says where one stands that takes a minute.
_GPU_TESTS = ("-vv", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60", "tests/pdmux_actor/gpu")
TREE = (
    Step(part="A", name="preflight", script=PREFLIGHT, least_s=1.0, most_s=20.0, is_required=True),
    # Whether a whole fleet serves comes before how fast an engine is.
    Step(
        part="A",
        name="fleet",
        script="fleet.py",
        arguments=("--quick", "--rate", "8"),
        least_s=90.0,
        most_s=270.0,
        skips=_without_ray,
    ),
    Step(part="A", name="tests", script=TESTS, arguments=_GPU_TESTS, most_s=240.0),
    # The first failure once more with its launches in order, so that the trace names the one that failed.
    Step(
        part="A",
        name="first_failed_test",
        script=TESTS,
        arguments=("-x", "--tb=long", *_GPU_TESTS),
        most_s=60.0,
        skips=_passed,
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
    ),
    Step(part="A", name="census", script="questions.py", arguments=("--quick", "--only", "census"), most_s=90.0),
    Step(
        part="A",
        name="speed",
        script="questions.py",
        arguments=("--quick", "--only", "speed"),
        most_s=90.0,
        skips=_unpartitioned,
    ),
    *(_queues(count) for count in _QUEUE_COUNTS),
    Step(
        part="B",
        name="hot_path",
        script="hot_path.py",
        arguments=("--quick",),
        most_s=90.0,
    ),
    Step(
        part="B",
        name="hot_path_small",
        script="hot_path.py",
        arguments=("--quick", *_SMALL_MODEL),
        most_s=60.0,
        skips=lambda found: "" if found.gave_nothing("hot_path") else "hot_path.py ran with the larger model",
    ),
    Step(part="B", name="host_step", script="host_step.py", arguments=("--quick",), most_s=30.0),
    Step(part="B", name="kernels", script="kernels.py", arguments=("--quick",), least_s=40.0, most_s=180.0),
    Step(part="C", name="floors", script="floors.py", least_s=90.0, most_s=420.0, adds=_eager, keeps_profile=True),
    Step(
        part="C",
        name="floors_small",
        script="floors.py",
        arguments=("--quick", *_SMALL_MODEL),
        least_s=40.0,
        most_s=120.0,
        skips=lambda found: "" if found.gave_nothing("floors") else "floors.py ran with the larger model",
        adds=_eager,
        keeps_profile=True,
    ),
    Step(
        part="D",
        name="gaps",
        script="gaps.py",
        arguments=("--quick",),
        least_s=60.0,
        most_s=180.0,
        adds=_eager_and_fitting,
    ),
    _goodput("D", "sharegpt", most_s=300.0),
    _goodput("E", "loogle", "conversation", most_s=480.0),
)
# In order of worth. Whatever becomes of a step, the later ones run: there is no time to begin one again.
QUARTER_HOUR = tuple(
    replace(step, most_tries=1, is_required=False)
    for step in (
        tree_step("preflight"),
        replace(tree_step("fleet"), most_s=210.0),
        replace(tree_step("tests"), most_s=180.0),
        Step(
            part="B",
            name="shared",
            script="shared.py",
            arguments=("--quick", "--policy", "mux"),
            least_s=120.0,
            most_s=180.0,
        ),
        _goodput("C", "sharegpt", most_s=300.0),
    )
)
