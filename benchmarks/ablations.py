"""What each part of multiplexing is worth: goodput without it, as in MuxWise Fig. 19 and 20 and DuetServe Fig. 9.

    python benchmarks/ablations.py [--quick] [--workload NAME ...] [--target NAME ...] [--json FILE] [--virtual]

Measured like `policies.py`, variants taking turns: `mux` and `muxwise` whole; `muxwise` without layer-wise slicing,
without query-based synchronisation, without preemption of prefill; a static partition of the cores.
"""

from collections.abc import Sequence
from dataclasses import replace

from policies import Target, Variant, arguments, run_comparison

from pdmux_actor.scheduling.settings import SchedulerSettings


def ablation_variants(target: Target) -> Sequence[Variant]:
    whole = SchedulerSettings(chunk_budget_tokens=target.budget_tokens)
    return (
        Variant(label="mux", policy="mux", settings=whole),
        Variant(label="muxwise", policy="muxwise", settings=whole),
        Variant(label="no layer slicing", policy="muxwise", settings=replace(whole, layer_slicing=False)),
        Variant(label="no query sync", policy="muxwise", settings=replace(whole, query_sync=False)),
        Variant(label="no preemption", policy="muxwise", settings=replace(whole, preempt_prefill=False)),
        Variant(label="static partition", policy="static_split", settings=whole),
    )


def main() -> None:
    args = arguments(__doc__).parse_args()
    run_comparison(args, "ablations", ablation_variants)


if __name__ == "__main__":
    main()
