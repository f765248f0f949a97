"""What comes out of half an hour on a GPU: a page to read, and the defaults that it suggests, as a patch."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu.half_hour_aims import aim_lines
from gpu.half_hour_tree import QUARTER_HOUR, TREE, Findings, Json, Step

from pdmux_actor.executor.cuda.launch_buckets import EAGER_LAYER_S

_ROOT = Path(__file__).resolve().parents[2]
_TILING_FILE = "pdmux_actor/executor/cuda/decode_kernels.py"
_QUEUES_FILE = "pdmux_actor/executor/cuda/cuda_device.py"
_TILING = ("tile_tokens", "num_warps", "num_stages")
_WORTH = 1.03  # of the default's speed: less is noise
_MOST_OF_A_CAUSE = 160  # characters


def write_outcome(out: Path, state: Mapping[str, Any], found: Findings, tree: Sequence[Step] = TREE) -> None:
    """Writes report.md, and defaults.patch where something is better than the default."""
    patch = defaults_patch(found)
    if patch:
        (out / "defaults.patch").write_text(patch, encoding="utf-8")
    (out / "report.md").write_text(report(state, found, patch, tree), encoding="utf-8")


def best_tiling(rows: Sequence[Json]) -> dict[str, int] | None:
    """The tiling whose shares of the peak have the highest geometric mean over all shapes; None: the default, whose
    rows are the first of each shape.
    """
    shares: dict[tuple[int, ...], dict[tuple[int, ...], float]] = {}
    for row in rows:
        if row["kernel"] == "decode":
            shape = row["batch"], row["tokens"], row["longest"]
            of_tiling = shares.setdefault(tuple(row[name] for name in _TILING), {})
            of_tiling[shape] = max(of_tiling.get(shape, 0.0), row["share_of_peak"])
    if not shares:
        return None
    default, shapes = next(iter(shares)), {shape for of in shares.values() for shape in of}
    means = {tiling: math.prod(of.values()) ** (1 / len(of)) for tiling, of in shares.items() if of.keys() == shapes}
    if default not in means:
        return None
    best = max(means, key=lambda tiling: means[tiling])
    return None if means[best] < _WORTH * means[default] else dict(zip(_TILING, best, strict=True))


def defaults_patch(found: Findings) -> str:
    """For `git apply`; empty where the defaults are as good as anything that was measured."""
    changes = {
        _TILING_FILE: {f"{name}: int": value for name, value in (best_tiling(found.rows("kernels")) or {}).items()},
        _QUEUES_FILE: {"_HARDWARE_QUEUES": found.best_queues()},
    }
    return "".join(_file_patch(file, values) for file, values in changes.items())


def _file_patch(file: str, values: Mapping[str, int]) -> str:
    before = (_ROOT / file).read_text(encoding="utf-8")
    after = before
    for name, value in values.items():
        after, count = re.subn(rf"^( *{re.escape(name)} = )\d+", rf"\g<1>{value}", after, count=1, flags=re.MULTILINE)
        assert count == 1, f"{file} has no {name}"
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{file}", f"b/{file}"))


def report(state: Mapping[str, Any], found: Findings, patch: str, tree: Sequence[Step] = TREE) -> str:
    """Returns a page of Markdown."""
    gpu = next((facts for step in tree if (facts := found.facts(step.name)).get("gpu")), {})
    lines = [
        f"# {'Half' if tree is TREE else 'A quarter of'} an hour on {gpu.get('gpu', 'a GPU that nothing ran on yet')}",
        "",
    ]
    versions = ", ".join(f"{name} {gpu[name]}" for name in ("driver", "torch", "muxfleet") if gpu.get(name))
    lines += [f"{state['spent_s'] / 60:.1f} minutes so far. {versions}".rstrip(), "", *_verdicts(found), ""]
    lines += aim_lines(found) if tree is TREE else []
    lines += ["| part | step | state | s | why |", "|---|---|---|---|---|"]
    for step in tree:
        record = state["steps"].get(step.name, {})
        why = "; ".join(filter(None, [record.get("why", ""), _first_failure(found, step.name)]))
        cells = record.get("state") or "left", f"{record.get('seconds', 0.0):.0f}", why
        lines.append(f"| {step.part} | {step.name} | {' | '.join(cells)} |")
    lines += ["", *_floor_lines(found), *_shared_lines(found), *_goodput_lines(found)]
    lines += [_defaults_line(patch), "", _next_line(state, found, tree)]
    return "\n".join(lines) + "\n"


def _first_failure(found: Findings, step: str) -> str:
    failures: Mapping[str, str] = found.reports.get(step, {}).get("failures", {})
    if not failures:
        return ""
    row, why = next(iter(failures.items()))
    return f"{len(failures)} rows failed, the first: {row}: {why}".replace("|", "/").replace("\n", " ")[
        :_MOST_OF_A_CAUSE
    ]


def _defaults_line(patch: str) -> str:
    changed = [
        line[1:].partition("#")[0].strip().rstrip(",")
        for line in patch.splitlines()
        if line[0] == "+" and line[:3] != "+++"
    ]
    if not changed:
        return "No default changes."
    return f"`git apply defaults.patch` sets what was faster by more than {_WORTH - 1:.0%}: {'; '.join(changed)}."


def _next_line(state: Mapping[str, Any], found: Findings, tree: Sequence[Step]) -> str:
    if found.states.get("preflight") == "failed" and tree is TREE:
        return "Next: preflight.log says what is missing; then the same line again in an empty folder."
    if found.states.get("tests") == "failed" and tree is TREE:
        return "Next: mend what first_failed_test.log shows; then the same line again in an empty folder."
    open_steps = [step.name for step in tree if state["steps"].get(step.name, {}).get("state", "") in ("", "cut")]
    if open_steps:
        options = "--quarter" if tree is QUARTER_HOUR else "--minutes 30"
        again = f"`python -m benchmarks.gpu.half_hour {options}`, with `--kept FOLDER` on a machine that began empty"
        return f"Next: {again}: {len(open_steps)} steps are left, the next one is {open_steps[0]}."
    if tree is QUARTER_HOUR:
        failed = [step.name for step in tree if state["steps"][step.name]["state"] == "failed"]
        if failed:
            return f"Next: mend what {', '.join(f'{name}.log' for name in failed)} shows."
        return "Next: `python -m benchmarks.gpu.half_hour --minutes 30`."
    return "Next: `python benchmarks/gpu/shared.py --quick --policy mux --json shared.json`, then all of goodput.py."


def _verdicts(found: Findings) -> list[str]:
    said = []
    if found.states.get("tests") == "failed":
        said.append("**Tests on the GPU failed: no speed below counts. tests.log says which.**")
    if started := found.rows("fleet", what="start"):
        killed = found.rows("fleet", what="engine killed")
        lost = f", {killed[0]['lost']} requests lost when its engine was killed" if killed else ""
        said.append(f"A fleet under Ray served after {started[0]['seconds']:.0f} s{lost}.")
    elif found.states.get("fleet") in ("failed", "cut"):
        said.append("**A fleet under Ray did not serve: fleet.log says why.**")
    if found.rows("census"):
        said.append(
            f"Partitions overlap: {len(found.overlapping)} pairs of shares."
            if found.overlapping
            else "Partitions hold."
        )
        held = "leave their partition; all later steps decode eagerly" if found.leaves_partition else "stay in theirs"
        said.append(f"Graphs {held}.")
    if faults := found.facts("hot_path").get("faults"):
        said.append(f"The hot path has what does not belong there: {faults}.")
    if graphs := found.facts("floors").get("all_graphs"):
        said.append(f"Capturing {graphs.get('graphs')} graphs took {graphs.get('seconds', 0.0):.1f} s.")
    if layer_s := found.facts("floors").get("eager_layer_s"):
        assumed = f"launch_buckets.py assumes {1e6 * EAGER_LAYER_S:.0f}"
        said.append(f"The host takes {1e6 * layer_s:.0f} us to launch a layer of a prompt ({assumed}).")
    if prompts := found.facts("floors").get("prompt_graphs_that_failed"):
        said.append(f"Layers of prompts could not be captured at {prompts} sizes: floors.log says why.")
    return [f"- {line}" for line in said] or ["- Nothing is known yet."]


def _floor_lines(found: Findings) -> list[str]:
    step = "floors" if found.rows("floors") else "floors_small"
    rows = found.rows(step)
    if not rows:
        return []
    whole = max(row["sms"] for row in rows)
    lines = [f"Steps of {found.facts(step).get('model')} on the whole GPU:", ""]
    lines += ["| step | batch | tokens | ms | of the floor's speed |", "|---|---|---|---|---|"]
    for row in rows:
        if row["sms"] == whole:
            cells = f"{1e3 * row['seconds']:.2f} | {1 / row['over_floor']:.0%}"
            lines.append(f"| {row['measured']} | {row['batch']} | {row['tokens']} | {cells} |")
    return [*lines, ""]


def _shared_lines(found: Findings) -> list[str]:
    lines = [
        f"- {r['system']} ({r['policy']}, {r['sms']} SMs): {r['goodput_per_s']:.2f}/s" for r in found.rows("shared")
    ]
    return ["Goodput of 8B and 1B, asked 1:4, in requests/s of both:", "", *lines, ""] if lines else []


def _goodput_lines(found: Findings) -> list[str]:
    rows = [row for step in TREE if step.script == "goodput.py" for row in found.rows(step.name)]
    lines = [
        f"- {r['workload']}: {r['policy']} (chunks of {r['chunk_budget_tokens']} tokens): {r['goodput_per_s']:.2f}/s"
        for r in rows
    ]
    return ["Goodput, in requests/s, at a TBT of 50 ms:", "", *lines, ""] if lines else []
