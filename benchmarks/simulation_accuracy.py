"""Simulated against measured: vLLM on a GPU, and our own engine on this machine's cores.

    python benchmarks/simulation_accuracy.py [--quick] [--part vllm|cpu] [--json FILE]

`vllm`: the 300-request runs of vLLM 0.19 in ../shared/profiles/e2e_vllm_llmservingsim.parquet, simulated with operator
tables of the same source and, beside it, with the roofline: Llama-3.1-8B on one RTX PRO 6000, Qwen3-30B-A3B on two of
them (data and expert parallel; the file does not say so, its source's meta.json does).
No constant is fitted to the runs.
`cpu`: one model of about 100 M parameters on this machine. Step times are measured first, then requests are sent to the
real engine in four parts, and the same requests are simulated; for three policies, one after the other. Runs before,
between and after the parts, with requests of their own, show what launches take in service beyond their solo times
(served_steps.py).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from accuracy.llmservingsim_profiles import ExpertParallelLatency, read_llmservingsim, spec_of_rank
from engines.engine_session import EngineSession, RunOutcome
from engines.lane_activity import LaneActivity
from engines.llama_checkpoint import DEFAULT_CACHE, llama_checkpoint
from engines.machine import measured_machine
from engines.measured_steps import MeasuredSteps
from engines.model_specs import LLAMA_3_8B, QWEN3_30B_A3B
from engines.served_steps import ServedSteps
from engines.solo_steps import token_budget
from engines.virtual_session import VirtualSession
from fleets.virtual_fleet import Coming, VirtualFleet, unit_design
from load.request_times import TimedRequest
from load.workloads import WORKLOADS, make_requests
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.messages import Slo
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.gpus.rtx_pro_6000 import DEVICE as RTX_PRO_6000
from profiler.latency import LatencyModel
from profiler.roofline import RooflineLatency
from profiler.specs import ModelSpec

ROOT = Path(__file__).parents[1]
PROFILES = ROOT.parent / "shared" / "profiles"
_POLICIES = ("mux", "chunked_prefill", "prefill_first")
_PARTS = 4  # of the CPU engine's measured requests, with calibrating ones between them
BLOCK_BYTES = 8192  # 16 tokens of a head of 128 in bfloat16, as vLLM's blocks
_VLLM_SLO = Slo(ttft_s=10.0, tbt_s=1.0)  # its scheduler knows none


def vllm_rows() -> list[dict[str, object]]:
    runs = pd.read_parquet(PROFILES / "e2e_vllm_llmservingsim.parquet")
    setups = {
        "Llama-3.1-8B": ("meta-llama/Llama-3.1-8B", LLAMA_3_8B, 1),
        "Qwen3-30B-A3B-Instruct-2507": ("Qwen/Qwen3-30B-A3B-Instruct-2507", QWEN3_30B_A3B, 2),
    }
    rows: list[dict[str, object]] = []
    for (device, name), run in runs.groupby(["device", "model"], observed=True):
        model, whole, ranks = setups[str(name)]
        spec = spec_of_rank(whole, ranks)
        profile = read_llmservingsim(
            PROFILES / "llmservingsim_vllm_dense.parquet",
            PROFILES / "llmservingsim_vllm_attention_mixed.parquet",
            device=str(device),
            model=model,
            num_gpus=1,
            spec=spec,
        )
        latencies: Mapping[str, LatencyModel] = {
            "table": profile.latency(spec, RTX_PRO_6000),
            "roofline": RooflineLatency(RTX_PRO_6000),
        }
        for kind, alone in latencies.items():
            latency = alone if ranks == 1 else ExpertParallelLatency(alone, whole, RTX_PRO_6000, ranks)
            simulated = _simulate_vllm(run, spec, latency, ranks)
            rows += _errors(f"vLLM, {name}, GPUs: {ranks}", kind, _measured_vllm(run), simulated)
    return rows


def _measured_vllm(run: pd.DataFrame) -> Mapping[str, np.ndarray]:
    tpot = (run.last_token_s - run.first_token_s) / (run.output_tokens - 1)
    return {
        "TTFT": (run.first_token_s - run.queued_s).to_numpy(),
        "TPOT": tpot.to_numpy(),
        "E2E": (run.last_token_s - run.queued_s).to_numpy(),
    }


def _simulate_vllm(run: pd.DataFrame, spec: ModelSpec, latency: LatencyModel, ranks: int) -> Mapping[str, np.ndarray]:
    """vLLM's scheduler is our chunked_prefill: decodes first, prompt chunks fill the token budget. Limits are per rank,
    and the ranks step together: one engine with as much of everything.
    """
    kv_bytes = int(0.95 * RTX_PRO_6000.memory_bytes) - spec.weight_bytes - (2 << 30)
    settings = SchedulerSettings(
        chunk_budget_tokens=ranks * int(run.max_num_batched_tokens.iloc[0]),
        max_running_sequences=ranks * int(run.max_num_seqs.iloc[0]),
        kv_watermark=0.0,
        prefix_cache=False,
    )
    design = unit_design(
        {"m": spec},
        policy="chunked_prefill",
        settings=settings,
        max_model_len=spec.max_position_embeddings,
        total_blocks=ranks * kv_bytes // BLOCK_BYTES,
        block_bytes=BLOCK_BYTES,
        device=RTX_PRO_6000,
        latency=latency,
    )
    fleet = VirtualFleet(design, _VLLM_SLO)
    fleet.send(
        Coming(
            at_s=float(row.queued_s),
            model="m",
            prompt=partial(tuple[int, ...], (5,) * int(row.input_tokens)),
            output_tokens=int(row.output_tokens),
            slo=_VLLM_SLO,
        )
        for row in run.itertuples()
    )
    fleet.advance(float("inf"))
    times = [fleet.sent[str(i)].times.token_times_s for i in range(len(run))]
    first, last = (np.array([of_one[end] for of_one in times]) for end in (0, -1))
    queued = run.queued_s.to_numpy()
    return {"TTFT": first - queued, "TPOT": (last - first) / (run.output_tokens.to_numpy() - 1), "E2E": last - queued}


def cpu_rows(quick: bool, requests: int, cache: Path, policies: Sequence[str]) -> list[dict[str, object]]:
    layers, count = (6, requests // 4) if quick else (12, requests)
    checkpoint = llama_checkpoint(cache, num_layers=layers)
    workload = WORKLOADS["sharegpt"]
    with measured_machine(checkpoint, virtual=True) as machine:
        steps, modelled = machine.steps, machine.times
    assert steps is not None
    step_s = modelled.step_s(8, workload.mean_context_tokens)
    slo = Slo(ttft_s=20 * step_s, tbt_s=2 * step_s)
    settings = SchedulerSettings(chunk_budget_tokens=token_budget(modelled, 8, workload.mean_context_tokens, slo.tbt_s))
    # Half of what the cores bear: queues form, and do not grow without end.
    work_s = modelled.prefill_s(256) / 256 * workload.mean_new_tokens + workload.mean_output_tokens * step_s / 8

    def part_of(number: int, seed: int) -> list[TimedRequest]:
        return make_requests(
            workload,
            model="llama",
            rate_per_s=0.5 / work_s,
            count=number,
            seed=seed,
            salt=seed,
            slo_of=lambda tokens: slo,
        )

    measured_parts = [part_of(count // _PARTS, 100 + i) for i in range(_PARTS)]
    calibrating_parts = [part_of(count // 10, 200 + i) for i in range(_PARTS + 1)]
    rows: list[dict[str, object]] = []
    for policy in policies:
        real = EngineSession(checkpoints={"llama": checkpoint}, policy=policy, settings=settings, steps=steps.latency)
        try:
            calibrations, parts = [real.run(calibrating_parts[0])], []
            for part, calibration in zip(measured_parts, calibrating_parts[1:], strict=True):
                parts.append(real.run(part))
                calibrations.append(real.run(calibration))  # a machine's speed drifts within minutes
        finally:
            real.close()
        served = ServedSteps.of(_activity(calibrations))
        simulated = _virtual(checkpoint, policy, settings, steps, served, (calibrating_parts[0], *measured_parts))[1:]
        of_policy = _errors(f"CPU engine, {policy}", "steps measured in this run", _times(parts), _times(simulated))
        facts = {
            "host_s": served.host_s,
            "prefill_slowdown": served.prefill_slowdown,
            "decode_slowdown": served.decode_slowdown,
            "other_cores": float(np.mean([part.other_cores for part in parts])),
            "launches": _launches(parts, simulated, served.host_s),
        }
        rows += [row | facts for row in of_policy]
    return rows


def _activity(outcomes: Sequence[RunOutcome]) -> LaneActivity:
    return LaneActivity([span for outcome in outcomes for span in outcome.lanes.spans])


def _launches(
    measured: Sequence[RunOutcome], simulated: Sequence[RunOutcome], host_s: float
) -> dict[str, dict[str, float]]:
    """By kind, of both runs: how many, and how long in the mean, without the host's part."""
    facts: dict[str, dict[str, float]] = {}
    for name, outcomes, host_part_s in (("measured", measured, 0.0), ("simulated", simulated, host_s)):
        activity = _activity(outcomes)
        for kind, number in activity.counts().items():
            lengths = [span.length_s for span in activity.spans if span.kind == kind]
            facts.setdefault(kind, {})[f"{name}_count"] = number
            facts[kind][f"{name}_mean_s"] = float(np.mean(lengths)) - host_part_s
    return facts


def _virtual(
    checkpoint: Path,
    policy: str,
    settings: SchedulerSettings,
    steps: MeasuredSteps,
    served: ServedSteps,
    runs: Sequence[Sequence[TimedRequest]],
) -> list[RunOutcome]:
    session = VirtualSession(
        checkpoints={"llama": checkpoint}, policy=policy, settings=settings, steps=steps, served=served
    )
    try:
        return [session.run(requests) for requests in runs]
    finally:
        session.close()


def _times(outcomes: Sequence[RunOutcome]) -> Mapping[str, np.ndarray]:
    requests = [request for outcome in outcomes for request in outcome.requests]
    return {
        "TTFT": np.array([r.ttft_s for r in requests]),
        "TBT": np.array([gap for r in requests for gap in r.gaps_s if gap > 0]),
    }


def _errors(
    run: str, latency: str, measured: Mapping[str, np.ndarray], simulated: Mapping[str, np.ndarray]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for metric, real in measured.items():
        row: dict[str, object] = {"run": run, "latency": latency, "metric": metric}
        for name, of in (
            ("mean", np.mean),
            ("p50", lambda values: np.percentile(values, 50)),
            ("p99", lambda values: np.percentile(values, 99)),
        ):
            a, b = float(of(real)), float(of(simulated[metric]))
            row |= {f"{name}_measured_s": a, f"{name}_simulated_s": b, f"{name}_error": b / a - 1}
        rows.append(row)
    return rows


COLUMNS: Mapping[str, str] = {
    **{name: f"{{{name}}}" for name in ("run", "latency", "metric")},
    **{name: f"{{{name}_measured_s:.4f}} s ({{{name}_error:+.1%}})" for name in ("mean", "p50", "p99")},
}


def main() -> None:
    parser = make_parser(__doc__, quick="a smaller model and a quarter of the requests on the CPU")
    parser.add_argument("--part", choices=("vllm", "cpu"), action="append")
    parser.add_argument("--policy", choices=_POLICIES, action="append", help="of the CPU part; default: all")
    parser.add_argument("--requests", type=int, default=240, help="that are measured per policy of the CPU part")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    parts = args.part or ["vllm", "cpu"]
    if "vllm" in parts and not PROFILES.exists():
        print("no ../shared/profiles here: the vLLM runs are left out")
    elif "vllm" in parts:
        rows += vllm_rows()
    if "cpu" in parts:
        rows += cpu_rows(args.quick, args.requests, args.cache, args.policy or _POLICIES)
    print_table(rows, COLUMNS)
    write_report(args.json, machine_facts(), rows)


if __name__ == "__main__":
    main()
