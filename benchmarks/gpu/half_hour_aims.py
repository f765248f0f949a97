"""What half an hour on a GPU must show, beside what it found: one line for each aim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpu.half_hour_tree import Findings, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """`found` None: not measured, by the step `by`."""

    name: str
    aim: str
    by: str
    found: str | None
    holds: bool = False

    def line(self, states: Mapping[str, str]) -> str:
        verdict = "holds" if self.holds else "**missed**"
        if self.found is None:
            verdict = f"not measured: {_CAUSES[states.get(self.by, '')].format(step=self.by)}"
        return f"| {self.name} | {self.aim} | {self.found or ''} | {verdict} |"


_CAUSES = MappingProxyType(
    {
        "": "{step} has not run yet",
        "cut": "{step} was cut off",
        "done": "{step} has no such row",
        "failed": "{step} failed, see {step}.log",
        "skipped": "{step} was left out",
    }
)


def aims(found: Findings) -> list[Aim]:
    return [
        _speed(found, "decode, 32 x 1k", 0.80, measured="decode", batch=32, tokens=1024),
        _speed(found, "decode, 32 x 8k", 0.80, measured="decode", batch=32, tokens=8192),
        _speed(found, "decode, 63 of 512 and one of 32k", 0.70, measured="skewed", batch=64, tokens=512),
        _speed(found, "prefill of 8k", 0.60, measured="prefill", batch=1, tokens=8192),
        _goodput(found),
        *_gaps(found),
        _host(found),
        _memory(found),
    ]


def aim_lines(found: Findings) -> list[str]:
    lines = [aim.line(found.states) for aim in aims(found)]
    return ["| what | aim | found | verdict |", "|---|---|---|---|", *lines, ""]


def _speed(found: Findings, name: str, share: float, **wanted: object) -> Aim:
    """Of the floor, on the whole GPU, of the larger model: the small one says nothing of these."""
    rows = found.rows("floors", **wanted)
    whole = max((row["sms"] for row in found.rows("floors")), default=0)
    reached = [1 / row["over_floor"] for row in rows if row["sms"] == whole]
    aim = f"{share:.0%} of the floor's speed"
    if not reached:
        return Aim(name=name, aim=aim, by="floors", found=None)
    return Aim(name=name, aim=aim, by="floors", found=f"{reached[0]:.0%}", holds=reached[0] >= share)


def _goodput(found: Findings) -> Aim:
    rows = found.rows("goodput_sharegpt", workload="sharegpt")
    best = {policy: max((r["goodput_per_s"] for r in _of(rows, policy)), default=0.0) for policy in _COMPARED}
    name, aim = "goodput of `mux` on ShareGPT shapes", "1.2 times chunked prefill's, its chunks tuned"
    if not all(_of(rows, policy) for policy in _COMPARED) or best["chunked_prefill"] == 0:
        return Aim(name=name, aim=aim, by="goodput_sharegpt", found=None)
    ratio = best["mux"] / best["chunked_prefill"]
    return Aim(name=name, aim=aim, by="goodput_sharegpt", found=f"{ratio:.2f} times", holds=ratio >= 1.2)


_COMPARED = ("mux", "chunked_prefill")


def _gaps(found: Findings) -> list[Aim]:
    """Half of the p99 gap of chunked prefill at no more than 1.3 times its first token."""
    made = []
    for rate in sorted({row["rate_per_s"] for row in found.rows("gaps")}) or [None]:
        rows = found.rows("gaps", rate_per_s=rate)
        name = "1,024 in, 128 out" + ("" if rate is None else f", {rate:g}/s")
        aim = "half the p99 gap of chunked prefill, first token 1.3 times or less"
        ours, theirs = (_of(rows, policy) for policy in _COMPARED)
        if not ours or not theirs:
            made.append(Aim(name=name, aim=aim, by="gaps", found=None))
            continue
        gap, ttft = (ours[0][field] / theirs[0][field] for field in ("gap_p99_s", "ttft_p50_s"))
        made.append(
            Aim(
                name=name,
                aim=aim,
                by="gaps",
                found=f"gap {gap:.2f}, first token {ttft:.2f} times",
                holds=gap <= 0.5 and ttft <= 1.3,
            )
        )
    return made


def _host(found: Findings) -> Aim:
    rows = found.rows("host_step", batch=128, tokens=1024)
    name, aim = "host time of a decode step, 128 x 1k", "150 us or less"
    if not rows:
        return Aim(name=name, aim=aim, by="host_step", found=None)
    greedy_us, drawn_us = rows[0]["us"], rows[0]["drawn_us"]
    found_us = f"{greedy_us:.0f} us greedy, {drawn_us:.0f} us drawn"
    return Aim(name=name, aim=aim, by="host_step", found=found_us, holds=max(greedy_us, drawn_us) <= 150)


def _memory(found: Findings) -> Aim:
    facts = found.facts("floors").get("arenas")
    name, aim = "memory of launches", "within the lanes' arenas"
    if not facts:
        return Aim(name=name, aim=aim, by="floors", found=None)
    beside, taken = facts["beside_arena_bytes"], facts["arena_taken_bytes"]
    found_bytes = f"{taken / (1 << 20):.0f} MiB in them, {beside / (1 << 20):.0f} MiB beside"
    return Aim(name=name, aim=aim, by="floors", found=found_bytes, holds=beside == 0)


def _of(rows: Sequence[Json], policy: str) -> list[Json]:
    return [row for row in rows if row["policy"] == policy]
