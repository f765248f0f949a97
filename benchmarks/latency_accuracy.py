"""How far the latency models are from measured kernels and engines, on rows that were kept from fitting.

    python benchmarks/latency_accuracy.py [--json FILE] [--quick] [--profiles DIR] [--only SECTION,...]

Needs the public profiles in ../shared/profiles. Tables are fitted to 80 % of a group's rows, drawn at random, and
judged by the rest. The roofline's rates are figures of the device, the same for all models; "roofline, others" refits
them to the other models' GEMMs, "roofline, refitted" those of prompts' attention to 80 % of a device's rows: kernels
differ more than devices. Errors are |predicted / measured - 1|: mean, 90 % quantile; bias is the signed mean.
`--quick` draws a quarter of the groups.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from accuracy.accuracy_data import (
    DEVICES,
    SPECS,
    AttentionRows,
    LinearRows,
    attention_rows,
    linear_rows,
    mixed_attention_rows,
)
from accuracy.collectives import all_reduce_rows
from accuracy.fitted_device import fitted
from accuracy.vidur_profiles import read_vidur
from engines.model_specs import LLAMA_2_70B, QWEN3_30B_A3B
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from profiler.batch_features import BatchFeatures, Feature
from profiler.errors import ProfileUnusable
from profiler.grid_table import GridTable
from profiler.latency import ChunkShape, Floats, LatencyModel
from profiler.operator_costs import OperatorCosts, operator_costs
from profiler.operator_profile import batches_of
from profiler.readers.aiconfigurator import column, read_rows
from profiler.roofline import RooflineLatency
from profiler.specs import DeviceSpec
from profiler.trend import DECODE_FEATURES, MIXED_FEATURES, PREFILL_FEATURES, Trend

PROFILES = Path(__file__).resolve().parents[2] / "shared" / "profiles"
_SEED = 20261121
_GRID: dict[str, tuple[tuple[Feature, ...], tuple[Feature, ...], int]] = {
    "decode": (DECODE_FEATURES, ("decode_sequences", "decode_depth"), 128),
    "prefill": (PREFILL_FEATURES, ("prefill_tokens", "prefill_context"), 128),
    "prefill batches": (PREFILL_FEATURES, ("prompts", "prefill_tokens"), 128),
    "mixed": (MIXED_FEATURES, ("prefill_tokens", "prefill_context", "decode_sequences", "decode_depth"), 12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    section: str
    device: str
    model: str
    what: str
    latency: str
    rows: int
    mean: float
    p90: float
    bias: float


def main() -> None:
    parser = make_parser(__doc__, quick="a quarter of the groups")
    parser.add_argument("--profiles", type=Path, default=PROFILES, metavar="DIR")
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="SECTION,...", help="default: %(default)s")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(SECTIONS):
        parser.error(f"--only {','.join(sorted(unknown))}: unknown; name some of {','.join(SECTIONS)}")
    started_s = time.perf_counter()
    found: list[Accuracy] = []
    try:
        for name in args.only.split(","):
            print(name, file=sys.stderr)
            found += SECTIONS[name](args.profiles, args.quick)
    except ProfileUnusable as error:
        parser.error(str(error))
    latencies = list(dict.fromkeys(row.latency for row in found))
    columns = {"section": "{section}", "device": "{device}", "model": "{model}", "what": "{what}"}
    columns |= {latency: f"{{errors[{latency}]}}" for latency in latencies}
    print_table(shown(found), columns, title="error on held-out rows, mean / 90 % quantile")
    machine = {**machine_facts(), "seconds": round(time.perf_counter() - started_s), "quick": args.quick}
    write_report(args.json, machine, [asdict(r) for r in found], summary=[asdict(r) for r in summaries(found)])


def linear(folder: Path, quick: bool) -> Iterator[Accuracy]:
    groups = list(linear_rows(folder))
    refitted = {
        (device, model): refit(DEVICES[device], [g for g in groups if g.device == device and g.model != model])
        for device, model in dict.fromkeys((g.device, g.model) for g in groups)
        if any(g.device == device and g.model != model for g in groups)
    }
    for group in groups[:: 4 if quick else 1]:
        held = held_out(len(group.tokens))
        tokens, measured_s = group.tokens[held], group.seconds[held]
        table = GridTable.fit(
            ("one", "tokens"), ("tokens",), as_tokens(group.tokens[~held]), group.seconds[~held], max_knots=512
        )
        predicted = {
            "table": table.seconds(as_tokens(tokens)),
            "roofline": linear_s(DEVICES[group.device], group, tokens),
        }
        others = refitted.get((group.device, group.model))
        if others is not None:
            predicted["roofline, others"] = linear_s(others, group, tokens)
        for latency, seconds in predicted.items():
            what = f"{group.operator} on {group.num_gpus}"
            yield accuracy("linear", group.device, group.model, what, latency, seconds, measured_s)


def attention(folder: Path, quick: bool) -> Iterator[Accuracy]:
    groups = list(attention_rows(folder))
    refitted: dict[tuple[str, str], DeviceSpec] = {}
    for group in groups[:: 4 if quick else 1]:
        several = group.kind == "prefill" and bool((group.batches.prompts > 1).any())
        yield from judged(group, "attention", "prefill batches" if several else group.kind)
        if group.kind != "prefill":
            continue
        key = group.device, group.source
        if key not in refitted:
            alike = [g for g in groups if g.kind == "prefill" and (g.device, g.source) == key]
            refitted[key] = refit_attention(DEVICES[group.device], alike)
        held = held_out(len(group.seconds))
        predicted_s = prompts_s(refitted[key], group, held)
        what = f"{group.kind} ({group.source})"
        yield accuracy(
            "attention", group.device, group.heads, what, "roofline, refitted", predicted_s, group.seconds[held]
        )


def mixed(folder: Path, quick: bool) -> Iterator[Accuracy]:
    """`added`: a table of prefill-only rows plus one of decode-only rows, what a model without mixed rows would say."""
    for group in list(mixed_attention_rows(folder))[:: 4 if quick else 1]:
        yield from judged(group, "mixed attention", "mixed")
        batches, seconds = group.batches, group.seconds
        held = held_out(len(seconds)) & (batches.prefill_tokens > 0) & (batches.decode_sequences > 0)
        added = np.zeros(int(held.sum()))
        for kind, other in (("prefill", batches.decode_sequences), ("decode", batches.prefill_tokens)):
            features, axes, knots = _GRID[kind]
            alone = other == 0
            if alone.sum() < 20:
                break
            table = GridTable.fit(features, axes, taken(batches, alone), seconds[alone], max_knots=knots)
            added += table.seconds(one_phase(taken(batches, held), kind))
        else:
            yield accuracy("mixed attention", group.device, group.heads, "mixed", "added", added, seconds[held])


def experts(folder: Path, quick: bool) -> Iterator[Accuracy]:
    """Rows in which about as many experts were active as the roofline expects; the profile varies that number."""
    rows = read_rows(
        folder / "llmservingsim_vllm_dense.parquet", ("device", "model", "tp", "table", "tokens", "activated_experts")
    )
    rows = rows[rows["table"] == "moe"]
    for (device, model, tp), group in rows.groupby(["device", "model", "tp"], observed=True):
        spec, tokens = SPECS[model], column(group, "tokens")
        expected = spec.num_experts * (1 - (1 - spec.experts_per_token / spec.num_experts) ** tokens)
        near = np.abs(column(group, "activated_experts") / expected - 1) < 0.1
        costs = operator_costs(QWEN3_30B_A3B, DEVICES[device], int(tp), DEVICES[device].num_sms)
        assert costs.experts is not None
        assert costs.router is not None
        launches_s = 6 * DEVICES[device].launch_overhead_s
        predicted_s = costs.experts.seconds(tokens[near]) + costs.router.seconds(tokens[near]) + launches_s
        measured_s = column(group, "time_us")[near] / 1e6
        yield accuracy("experts", device, model, f"block on {tp}", "roofline", predicted_s, measured_s)


def iterations(folder: Path, quick: bool) -> Iterator[Accuracy]:
    """Whole passes of Llama-2-70B in an engine of 2023 (Splitwise); its host took 30 to 45 ms of a step on 8 GPUs."""
    rows = read_rows(
        folder / "splitwise_perf_model.parquet",
        (
            "model",
            "hardware",
            "tensor_parallel",
            "batch_size",
            "prompt_size",
            "token_size",
            "prompt_time",
            "token_time",
        ),
    )
    rows = rows[(rows["model"] == "llama2-70b") & (rows["batch_size"] == 1) & (rows["prompt_size"] <= 4096)]
    for hardware, device in (("a100-80gb", "a100"), ("h100-80gb", "h100")):
        for tp in (2, 8):
            chosen = rows[(rows["hardware"] == hardware) & (rows["tensor_parallel"] == tp)]
            prompts = chosen.groupby("prompt_size")["prompt_time"].median()
            tokens = chosen[chosen["token_time"] > 0].groupby(["prompt_size", "token_size"])["token_time"].median()
            for name, latency in iteration_models(folder, device, tp).items():
                sms = DEVICES[device].num_sms
                predicted = [latency.prefill_s(LLAMA_2_70B, [ChunkShape(int(n))], sms) for n in prompts.index]
                yield accuracy(
                    "iteration", device, "Llama-2-70B", f"prefill on {tp}", name, np.array(predicted),
                    prompts.to_numpy(dtype=np.float64) / 1e3,
                )  # fmt: skip
                if len(tokens):
                    predicted = [latency.decode_s(LLAMA_2_70B, [int(n + k // 2)], sms) for n, k in tokens.index]
                    yield accuracy(
                        "iteration", device, "Llama-2-70B", f"decode on {tp}", name, np.array(predicted),
                        tokens.to_numpy(dtype=np.float64) / 1e3,
                    )  # fmt: skip


def iteration_models(folder: Path, device: str, tp: int) -> dict[str, LatencyModel]:
    models: dict[str, LatencyModel] = {"roofline": RooflineLatency(DEVICES[device], num_gpus=tp)}
    if (device, tp) == ("a100", 2):  # for which the public profiles have attention with these heads per GPU
        profile = read_vidur(
            folder / "vidur_linear_ops.parquet",
            folder / "attention.parquet",
            device=device,
            model="meta-llama/Llama-2-70b-hf",
            num_gpus=tp,
            spec=LLAMA_2_70B,
        )
        models["table"] = profile.latency(LLAMA_2_70B, DEVICES[device], num_gpus=tp)
    return models


def collectives(folder: Path, quick: bool) -> Iterator[Accuracy]:
    """The roofline's all-reduces, of which APEX's H100 and H200 gave the rates."""
    for rows in all_reduce_rows(folder):
        costs = operator_costs(LLAMA_2_70B, rows.device, rows.num_gpus, rows.device.num_sms)
        tokens = rows.size_bytes / (LLAMA_2_70B.hidden_size * LLAMA_2_70B.dtype_bytes)
        what = f"all-reduce on {rows.num_gpus}, {rows.sizes} ({rows.source})"
        predicted_s = costs.all_reduce_s(tokens)
        yield accuracy("collectives", rows.device.name, "all", what, "roofline", predicted_s, rows.seconds)


def judged(group: AttentionRows, section: str, grid: str) -> Iterator[Accuracy]:
    features, axes, knots = _GRID[grid]
    held = held_out(len(group.seconds))
    known, asked = taken(group.batches, ~held), taken(group.batches, held)
    device = DEVICES[group.device]
    costs = operator_costs(group.spec, device, 1, device.num_sms)
    predicted = {
        "table": GridTable.fit(features, axes, known, group.seconds[~held], max_knots=knots).seconds(asked),
        "fitted": Trend.fit(features, known, group.seconds[~held]).seconds(asked),
        "roofline": attention_s(costs, asked) + device.launch_overhead_s,
    }
    for latency, seconds in predicted.items():
        what = f"{group.kind} ({group.source})"
        yield accuracy(section, group.device, group.heads, what, latency, seconds, group.seconds[held])


def linear_s(device: DeviceSpec, group: LinearRows, tokens: Floats) -> Floats:
    costs = operator_costs(SPECS[group.model], device, group.num_gpus, device.num_sms)
    operator = {"qkv": costs.qkv, "output": costs.output, "gate_up": costs.gate_up, "down": costs.down}[group.operator]
    return operator.seconds(tokens) + device.launch_overhead_s


def attention_s(costs: OperatorCosts, batches: BatchFeatures[Floats]) -> Floats:
    length = batches.prefill_tokens / np.maximum(batches.prompts, 1)
    pairs = batches.prompts * costs.attention.prompt_pairs(length, batches.prefill_context)
    keys = batches.prompts * (length + batches.prefill_context)
    decode_keys = batches.decode_tokens + batches.decode_sequences
    cost, queries, all_keys = costs.attention, batches.tokens, keys + decode_keys
    longest = np.maximum(
        length + batches.prefill_context, batches.decode_tokens / np.maximum(batches.decode_sequences, 1)
    )
    with_prompts_s = cost.with_prompts_s(
        pairs + cost.fused_decode_tokens * decode_keys, queries, all_keys,
        longest_keys=longest, decodes=batches.decode_sequences,
    )  # fmt: skip
    return np.where(batches.prompts > 0, with_prompts_s, cost.seconds(decode_keys, queries, all_keys))


def refit(device: DeviceSpec, groups: Sequence[LinearRows]) -> DeviceSpec:
    """Compute rate, bandwidth, launch overhead and knee that suit `groups` best."""
    thinned = [replace(g, tokens=g.tokens[::16], seconds=g.seconds[::16]) for g in groups]
    return fitted(
        device,
        start={
            "peak_flops_per_s": device.peak_flops_per_s,
            "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
            "launch_overhead_s": device.launch_overhead_s,
            "knee_exponent": device.knee_exponent,
        },
        predicted_s=lambda spec: np.concatenate([linear_s(spec, g, g.tokens) for g in thinned]),
        measured_s=np.concatenate([g.seconds for g in thinned]),
        outlier=0.05,
    )


def refit_attention(device: DeviceSpec, groups: Sequence[AttentionRows]) -> DeviceSpec:
    """Compute share, rows and masked pairs in vain, and the start that suit the kernel of `groups` best."""
    known = [(g, ~held_out(len(g.seconds))) for g in groups]
    return fitted(
        device,
        start={
            "attention_compute_share": device.attention_compute_share,
            "attention_padding_tokens": 100.0,
            "attention_masked_share": 0.1,
            "attention_start_s": device.attention_start_s,
        },
        predicted_s=lambda spec: np.concatenate([prompts_s(spec, g, rows) for g, rows in known]),
        measured_s=np.concatenate([g.seconds[rows] for g, rows in known]),
        outlier=0.1,
    )


def prompts_s(device: DeviceSpec, group: AttentionRows, rows: np.ndarray) -> Floats:
    costs = operator_costs(group.spec, device, 1, device.num_sms)
    return attention_s(costs, taken(group.batches, rows)) + device.launch_overhead_s


def held_out(count: int) -> np.ndarray:
    return np.random.default_rng([_SEED, count]).random(count) < 0.2


def as_tokens(tokens: Floats) -> BatchFeatures[Floats]:
    return batches_of(decode_sequences=tokens, decode_depth=np.zeros_like(tokens))


def taken(batches: BatchFeatures[Floats], rows: np.ndarray) -> BatchFeatures[Floats]:
    return changed(batches, lambda values: values[rows])


def one_phase(batches: BatchFeatures[Floats], kind: str) -> BatchFeatures[Floats]:
    decode_part = ("decode_sequences", "decode_tokens")
    kept = {
        name: values if (name in decode_part) == (kind == "decode") else np.zeros_like(values)
        for name, values in asdict(batches).items()
    }
    return BatchFeatures(**kept)


def changed(batches: BatchFeatures[Floats], change: Callable[[Floats], Floats]) -> BatchFeatures[Floats]:
    return BatchFeatures(**{name: change(values) for name, values in asdict(batches).items()})


def accuracy(
    section: str, device: str, model: str, what: str, latency: str, predicted_s: Floats, measured_s: Floats
) -> Accuracy:
    errors = predicted_s / measured_s - 1
    return Accuracy(
        section=section,
        device=device,
        model=model,
        what=what,
        latency=latency,
        rows=len(errors),
        mean=round(float(np.abs(errors).mean()), 4),
        p90=round(float(np.quantile(np.abs(errors), 0.9)), 4),
        bias=round(float(errors.mean()), 4),
    )


def summaries(found: Sequence[Accuracy]) -> list[Accuracy]:
    """Over all groups of a section, device, model (linear operators) or kind (attention) and latency model."""
    groups: dict[tuple[str, str, str, str, str], list[Accuracy]] = defaultdict(list)
    for row in found:
        model = row.model if row.section in ("linear", "experts", "iteration") else "all"
        what = row.what if row.section not in ("linear", "experts") else "all"
        groups[(row.section, row.device, model, what, row.latency)].append(row)
    return [
        Accuracy(
            section=section, device=device, model=model, what=what, latency=latency,
            rows=sum(r.rows for r in rows),
            mean=round(float(np.average([r.mean for r in rows], weights=[r.rows for r in rows])), 4),
            p90=round(float(np.average([r.p90 for r in rows], weights=[r.rows for r in rows])), 4),
            bias=round(float(np.average([r.bias for r in rows], weights=[r.rows for r in rows])), 4),
        )
        for (section, device, model, what, latency), rows in groups.items()
    ]  # fmt: skip


def shown(found: Sequence[Accuracy]) -> list[dict[str, object]]:
    """A row for all latency models of one thing."""
    errors: dict[tuple[str, str, str, str], dict[str, str]] = defaultdict(dict)
    for row in summaries(found):
        errors[(row.section, row.device, row.model, row.what)][row.latency] = f"{row.mean:.1%} / {row.p90:.1%}"
    return [
        dict(zip(("section", "device", "model", "what", "errors"), (*k, of), strict=True)) for k, of in errors.items()
    ]


SECTIONS: Mapping[str, Callable[[Path, bool], Iterator[Accuracy]]] = MappingProxyType(
    {section.__name__: section for section in (linear, attention, mixed, experts, collectives, iterations)}
)

if __name__ == "__main__":
    main()
