import math
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_cases import SMALL, eq_1_and_2, measured

from profiler.contention import ContentionGuard, GuardCell
from profiler.errors import ProfileUnusable
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.h100 import DEVICE as H100
from profiler.guard_file import read_guard_grid, write_guard
from profiler.measurement import Measurement
from profiler.partition_rates import PartitionRate
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.profile_file import read_profile, write_profile
from profiler.specs import DeviceSpec

DECODE = LaunchShape(sms=32, sequences=16, depth=128)
PREFILL = LaunchShape(sms=100, prompts=1, new_tokens=1024)
HELD_OUT = (
    LaunchShape(sms=32, prompts=2, new_tokens=100),
    LaunchShape(sms=32, sequences=5, depth=300),
    LaunchShape(sms=32, prompts=1, new_tokens=50, sequences=9, depth=100),
)


def make_profile() -> Profile:
    rows = measured(eq_1_and_2, 32, 64)
    rows += [
        Measurement(launch=launch, seconds=eq_1_and_2(launch), high_s=1.0, repeats=3, is_held_out=True)
        for launch in HELD_OUT
    ]
    beside_s = 1.25 * eq_1_and_2(DECODE)
    rows.append(Measurement(launch=DECODE, beside=PREFILL, seconds=beside_s, high_s=1.1 * beside_s, repeats=5))
    return Profile(
        engine="native",
        device=H100,
        num_gpus=1,
        machine={"processor": "of a test"},
        models={"small": ModelProfile(spec=SMALL, measurements=tuple(rows))},
        partition_rates=(PartitionRate(sms=32, flops_per_s=2e14, bandwidth_bytes_per_s=2.5e12),),
    )


def test_profile__written_and_read__is_the_same(tmp_path: Path) -> None:
    profile = make_profile()

    write_profile(profile, tmp_path / "p.parquet")

    assert read_profile(tmp_path / "p.parquet") == profile
    assert [file.name for file in tmp_path.iterdir()] == ["p.parquet"]


def test_guard__of_a_profile__is_the_measured_slowdown() -> None:
    guard = make_profile().guard()

    assert guard.slowdown(GuardCell.of(32, PREFILL.chunks, DECODE.contexts)) == pytest.approx(1.25)
    assert len(list(guard.items())) == 1


def test_held_out_errors__world_of_eq_1_and_2__are_nil_but_for_the_roofline() -> None:
    errors = make_profile().held_out_errors()

    assert {(e.latency, e.phase) for e in errors} == {
        (latency, phase) for latency in ("roofline", "fitted", "table") for phase in ("prefill", "decode", "mixed")
    }
    assert all((e.mean < 1e-6) == (e.latency != "roofline") for e in errors)
    assert all(e.launches == 1 for e in errors)


def test_best_latency__when_an_equation_does_not_hold__is_the_table() -> None:
    def waves_s(launch: LaunchShape) -> float:
        return eq_1_and_2(launch) + 5e-3 * math.sqrt(math.ceil(launch.sequences / 4))

    rows = measured(waves_s, 32)
    held_out = [
        Measurement(launch=launch, seconds=waves_s(launch), high_s=1.0, repeats=3, is_held_out=True)
        for launch in (LaunchShape(sms=32, sequences=n, depth=d) for n in (1, 4, 16, 64) for d in (20, 200))
    ]
    profile = make_profile()
    model = ModelProfile(spec=SMALL, measurements=(*rows, *held_out))

    name, latency = replace(profile, models={"small": model}).best_latency()

    assert name == "table"
    assert latency.decode_s(SMALL, [128] * 16, 32) == pytest.approx(
        waves_s(LaunchShape(sms=32, sequences=16, depth=128)), rel=0.05
    )


def write_foreign(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


def write_head(path: Path, *, head: str) -> None:
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({"muxfleet.profile": head}), path)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_text("{}"), "not a readable parquet file"),
        (lambda path: path.mkdir(), "is a folder"),
        (write_foreign, "not a muxfleet profile"),
        (partial(write_head, head='{"version": 99}'), "format version 99"),
        (partial(write_head, head='{"version": 1}'), "is damaged"),
        (partial(write_head, head="half of {"), "is damaged"),
        (partial(write_head, head="[]"), "is damaged"),
    ],
)
def test_read_profile__unusable_file__says_why_and_what_to_do(tmp_path: Path, write, reason: str) -> None:
    write(tmp_path / "p.parquet")

    with pytest.raises(ProfileUnusable, match=reason) as refusal:
        read_profile(tmp_path / "p.parquet")

    assert "muxfleet profile" in refusal.value.remedy


@pytest.mark.parametrize(
    ("column", "value"),
    [("seconds", None), ("seconds", math.nan), ("seconds", 0.0), ("seconds", -1.0), ("sms", None), ("new_tokens", -1)],
)
def test_read_profile__row_that_no_launch_can_have__names_it(tmp_path: Path, column: str, value: object) -> None:
    """Who fits latency models to it, the control loop among them, could not say what is wrong."""
    file = tmp_path / "p.parquet"
    write_profile(make_profile(), file)
    table = pq.read_table(file)
    rows = table.to_pylist()
    rows[2][column] = value
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)

    with pytest.raises(ProfileUnusable, match=f"row 3: {column} is"):
        read_profile(file)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sequences": 2, "depth": 0, "prompts": 0}, "depth is 0, not 1 or more"),
        ({"prompts": 1, "new_tokens": 0}, "new_tokens is 0, not 1 or more"),
        ({"prompts": 0, "sequences": 0}, "prompts and sequences are both 0"),
    ],
)
def test_read_profile__launch_of_nothing__names_the_field(tmp_path: Path, changes: dict, reason: str) -> None:
    """What is fitted divides by what a launch has to do."""
    for prefix, place in (("", 2), ("beside_", -1)):
        file = tmp_path / f"{prefix}p.parquet"
        write_profile(make_profile(), file)
        table = pq.read_table(file)
        rows = table.to_pylist()
        rows[place] |= {f"{prefix}{name}": value for name, value in changes.items()}
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)

        with pytest.raises(ProfileUnusable, match=rf"row \d+: {prefix}{reason.replace('and ', f'and {prefix}')}"):
            read_profile(file)


def learned_guard(cell: GuardCell, slowdown: float) -> ContentionGuard:
    guard = ContentionGuard()
    for _ in range(4):
        guard.observe(cell, slowdown)
    return guard


CELL = GuardCell.of(32, PREFILL.chunks, DECODE.contexts)


def test_guard_file__written_and_read__says_the_same(tmp_path: Path) -> None:
    write_guard(learned_guard(CELL, 1.7), tmp_path / "guard.json", H100)

    assert read_guard_grid(tmp_path / "guard.json", H100) == {CELL: 1.7}
    assert sorted(file.name for file in tmp_path.iterdir()) == [".guard.json.lock", "guard.json"]


def test_guard_file__of_another_device__is_no_use(tmp_path: Path) -> None:
    write_guard(learned_guard(CELL, 1.7), tmp_path / "guard.json", H100)

    assert read_guard_grid(tmp_path / "guard.json", A100_80G) == {}


def test_guard_file__seen_once__is_not_kept(tmp_path: Path) -> None:
    guard = ContentionGuard()
    guard.observe(CELL, 9.0)

    write_guard(guard, tmp_path / "guard.json", H100)

    assert read_guard_grid(tmp_path / "guard.json", H100) == {}


def test_guard_file__two_engines__each_keeps_what_the_other_learned(tmp_path: Path) -> None:
    write_guard(learned_guard(CELL, 1.7), tmp_path / "guard.json", H100)
    write_guard(learned_guard(CELL._replace(decode_sms=64), 1.2), tmp_path / "guard.json", H100)
    write_guard(learned_guard(CELL, 1.4), tmp_path / "guard.json", H100)

    assert read_guard_grid(tmp_path / "guard.json", H100) == {CELL: 1.4, CELL._replace(decode_sms=64): 1.2}


def test_guard_file__two_engines_end_at_once__neither_writes_over_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "guard.json"
    second = threading.Thread(target=write_guard, args=(learned_guard(CELL._replace(decode_sms=64), 1.2), file, H100))

    def read_while_the_other_ends(path: Path, device: DeviceSpec) -> dict[GuardCell, float]:
        grid = read_guard_grid(path, device)
        monkeypatch.undo()
        second.start()
        second.join(timeout=0.5)  # it must not get further meanwhile, and does where nothing holds it
        return grid

    monkeypatch.setattr("profiler.guard_file.read_guard_grid", read_while_the_other_ends)
    write_guard(learned_guard(CELL, 1.7), file, H100)
    second.join(timeout=60)

    assert read_guard_grid(file, H100) == {CELL: 1.7, CELL._replace(decode_sms=64): 1.2}


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"cells": [{"decode_sms": 1}]}', '{"cells": 3}', '{"cells": []}']
)
def test_read_guard__unusable_file__is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "guard.json").write_text(text)

    with pytest.raises(ProfileUnusable, match="contention guard"):
        read_guard_grid(tmp_path / "guard.json")


def test_read_guard__folder_is_missing__says_so(tmp_path: Path) -> None:
    with pytest.raises(ProfileUnusable, match=r"folder .* does not exist"):
        read_guard_grid(tmp_path / "nowhere" / "guard.json")
