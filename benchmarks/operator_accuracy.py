"""How far figures of devices are from operators that NVIDIA timed, and which figures would be nearer.

    python benchmarks/operator_accuracy.py --tables FOLDER [--json FILE] [--quick] [--device NAME,...]

FOLDER is that of the package `aiconfigurator_core` (pip install aiconfigurator-core==0.12.0 into an environment of its
own). `now`: the device as it is. `refitted`: matrix rate, bandwidth, launch overhead and knee to products, then
attention's figures to attention, of vLLM's tables; those of links to NCCL's all-reduces. Judged by shapes kept
from the fit, and by TensorRT-LLM's tables, which no figure was fitted to; of all-reduces, which are few, by all.
Errors are |predicted / measured - 1|: mean, 90 % quantile; bias is the signed mean. `--quick` leaves the fits out.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from accuracy.fitted_device import fitted
from accuracy.operator_rows import OPERATORS, SYSTEMS, OperatorRows, operator_rows
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from profiler.devices import device_named
from profiler.specs import DeviceSpec

_FITTED_TO = "vllm"
_FIGURES = {
    ("products",): ("peak_flops_per_s", "memory_bandwidth_bytes_per_s", "launch_overhead_s", "knee_exponent"),
    ("prompts", "decode"): (
        "attention_compute_share",
        "attention_bandwidth_share",
        "attention_padding_tokens",
        "attention_start_s",
    ),
    ("all-reduce",): (
        "all_reduce_start_s",
        "link_latency_s",
        "link_bandwidth_bytes_per_s",
        "link_sharing_exponent",
    ),
}
_STARTS = {"attention_padding_tokens": 100.0, "link_sharing_exponent": 0.1}  # of figures that may be 0
_OUTLIER = 0.1
_FEW_TOKENS, _MANY_TOKENS, _LITTLE_BYTES = 64, 1024, 1 << 20


def refitted(folder: Path, device: DeviceSpec) -> DeviceSpec:
    for operators, figures in _FIGURES.items():
        known = [operator_rows(folder, device.name, _FITTED_TO, operator).halves()[0] for operator in operators]
        device = fitted(
            device,
            start={name: getattr(device, name) or _STARTS[name] for name in figures},
            predicted_s=lambda spec, known=known: np.concatenate([rows.predicted_s(spec) for rows in known]),
            measured_s=np.concatenate([rows.measured_s for rows in known]),
            outlier=_OUTLIER,
        )
    return device


def parts(folder: Path, device: str) -> Iterator[tuple[str, OperatorRows]]:
    """What is judged: rows that no figure was fitted to."""
    for operator in OPERATORS:
        for engine in ("",) if operator == "all-reduce" else ("vllm", "trtllm"):
            rows = operator_rows(folder, device, engine, operator)
            held = rows.halves()[1]
            if operator == "products":
                tokens = held.rows["m"]
                yield f"products of up to {_FEW_TOKENS} tokens", held.only(tokens <= _FEW_TOKENS)
                yield f"products of {_MANY_TOKENS:,} tokens and more", held.only(tokens >= _MANY_TOKENS)
            elif operator == "all-reduce":
                is_little = 2 * held.rows["message_size"] <= _LITTLE_BYTES
                yield "all-reduce of up to 1 MiB", held.only(is_little)
                yield "all-reduce of 1 to 64 MiB", held.only(~is_little)
            else:
                yield f"attention of {operator}", held


def judged(
    folder: Path, device: DeviceSpec, candidates: Sequence[tuple[str, DeviceSpec]]
) -> Iterator[dict[str, object]]:
    for what, rows in parts(folder, device.name):
        for name, candidate in candidates:
            errors = rows.predicted_s(candidate) / rows.measured_s - 1
            yield {
                "device": device.name,
                "tables": f"{rows.engine} {rows.version}",
                "what": what,
                "figures": name,
                "rows": len(errors),
                "error": float(np.abs(errors).mean()),
                "p90": float(np.quantile(np.abs(errors), 0.9)),
                "bias": float(errors.mean()),
            }


def main() -> None:
    parser = make_parser(__doc__, quick="no fits")
    parser.add_argument("--tables", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", default=",".join(SYSTEMS), metavar="NAME,...", help="default: %(default)s")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    found: list[dict[str, object]] = []
    for name in args.device.split(","):
        device = device_named(name)
        candidates = [("now", device)]
        if not args.quick:
            candidates.append(("refitted", refitted(args.tables, device)))
            named = [figure for figures in _FIGURES.values() for figure in figures]
            for figures, spec in candidates:
                found.append({"device": name, "figures": figures, **{f: getattr(spec, f) for f in named}})
        rows += judged(args.tables, device, candidates)
    columns = {name: "{" + name + "}" for name in ("device", "tables", "what", "figures", "rows")}
    columns |= {name: f"{{{name}:+.1%}}" for name in ("error", "p90", "bias")}
    print_table(rows, columns, title="operators: predicted against measured", width=150)
    if found:
        shown = {name: "{" + name + "}" for name in ("device", "figures")}
        shown |= {name: f"{{{name}:.3g}}" for name in found[0] if name not in shown}
        print_table(found, shown, title="figures", width=200)
    write_report(args.json, machine_facts(), rows, summary=found)


if __name__ == "__main__":
    main()
