"""Gaps between tokens and time to the first at fixed rates: 1,024 tokens in, 128 out, policies by turns in one engine.

    python benchmarks/gpu/gaps.py [--quick] [--model llama-3-8b] [--rate 8 ...] [--policy mux ...] [--json FILE]

All policies get the same arrivals. `chunked_prefill` is what a whole GPU without partitions does, `static_split` what a
fixed split does.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from engines.engine_session import EngineSession
from gpu.goodput import BLOCK_BYTES, MAX_BATCH_TOKENS, MAX_SEQUENCES, open_session
from gpu.random_models import SHAPES
from gpu.script import KeptRows, Row, draw_bars, make_parser, run_script
from load.request_times import TimedRequest
from report.command import print_table

from pdmux_actor.executor.open_cuda import open_cuda_executor
from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.scheduling.policies.registry import POLICIES
from placement.launch_limits import LaunchLimits

ROW_KEY = ("rate_per_s", "policy", "tbt_target_s")
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 128
RATES = (8.0, 10.0, 12.0)
DEFAULT_POLICIES = ("mux", "chunked_prefill", "static_split")
_CHUNK_TOKENS = 512
_TBT_S = 0.025
_WARM_UP_REQUESTS = 8


def requests_at(
    rate_per_s: float, seconds: float, *, model: str, vocab_size: int, tokens: tuple[int, int], salt: int, slo: Slo
) -> list[TimedRequest]:
    """Poisson arrivals, the same for every `salt`, which only keeps prompts out of each other's prefix cache."""
    arrivals = np.random.default_rng(0)
    at_s, made = 0.0, []
    while (at_s := at_s + float(arrivals.exponential(1 / rate_per_s))) < seconds:
        prompt = np.random.default_rng([salt, len(made)]).integers(0, vocab_size, tokens[0])
        request = GenerateRequest(
            request_id=f"{salt}-{len(made)}",
            model=model,
            prompt_token_ids=tuple(prompt.tolist()),
            sampling=SamplingParams(max_tokens=tokens[1], temperature=0.0, ignore_eos=True),
            slo=slo,
        )
        made.append(TimedRequest(at_s, request))
    return made


def measure(session: EngineSession, policy: str, requests: Sequence[TimedRequest]) -> Row:
    session.change_policy(policy)
    outcome = session.run(requests)
    whole = [times for times in outcome.requests if len(times.token_times_s) == times.num_tokens_wanted]
    if not whole:
        raise RuntimeError("no request was answered to its end")
    gaps_s = np.concatenate([times.gaps_s for times in whole])
    ttfts_s = np.array([times.ttft_s for times in whole])
    return {
        "requests": len(outcome.requests),
        "answered": len(whole),
        "gap_p50_s": float(np.quantile(gaps_s, 0.5)),
        "gap_p99_s": float(np.quantile(gaps_s, 0.99)),
        "ttft_p50_s": float(np.quantile(ttfts_s, 0.5)),
        "ttft_p99_s": float(np.quantile(ttfts_s, 0.99)),
    }


def measure_all(
    executor: TorchCudaExecutor,
    kept: KeptRows,
    *,
    model: str,
    rates: Sequence[float],
    policies: Sequence[str],
    seconds: float,
    tbt_s: float = _TBT_S,
    tokens: tuple[int, int] = (INPUT_TOKENS, OUTPUT_TOKENS),
    dtype: str = "bfloat16",
) -> None:
    vocab_size = int(SHAPES[model]["vocab_size"])
    session = open_session(executor, model, policies[0], _CHUNK_TOKENS, dtype=dtype)
    salt = 0
    for rate in rates:
        for policy in policies:
            salt += 2

            def row(rate: float = rate, policy: str = policy, salt: int = salt) -> Row:
                make = {"model": model, "vocab_size": vocab_size, "tokens": tokens, "slo": Slo(ttft_s=1.0, tbt_s=tbt_s)}
                warm = requests_at(rate, _WARM_UP_REQUESTS / rate, salt=salt + 1, **make)
                if warm:
                    measure(session, policy, warm)
                return measure(session, policy, requests_at(rate, seconds, salt=salt, **make))

            kept.attempt({"rate_per_s": rate, "policy": policy, "tbt_target_s": tbt_s}, row)
    session.close()


def measure_on_gpu(options: argparse.Namespace, kept: KeptRows) -> None:
    executor = open_cuda_executor(
        kv_pool_bytes=int(options.kv_gib * (1 << 30)),
        block_bytes=BLOCK_BYTES,
        captures=not options.eager,
        fuses=any(POLICIES[policy].fuses for policy in options.policy or DEFAULT_POLICIES),
        launch_limits=LaunchLimits(batch_tokens=MAX_BATCH_TOKENS, sequences=MAX_SEQUENCES),
    )
    kept.note_gpu(executor.device, executor.chosen)
    kept.note({"model": options.model})
    measure_all(
        executor,
        kept,
        model=options.model,
        rates=options.rate or RATES,
        policies=options.policy or DEFAULT_POLICIES,
        seconds=6.0 if options.quick else 15.0,
        tbt_s=options.tbt_s,
    )


def show(kept: KeptRows) -> None:
    names = ("gap_p50_s", "gap_p99_s", "ttft_p50_s", "ttft_p99_s")
    rows = [{**row, **{name: 1e3 * row[name] for name in names}} for row in kept.rows]
    columns = {name.replace("_s", " ms"): f"{{{name}:.1f}}" for name in names}
    print_table(rows, {"rate 1/s": "{rate_per_s:g}", "policy": "{policy}", **columns})


def draw(figure: Any, rows: Sequence[Row]) -> None:
    titled = [{**row, "title": f"{row['rate_per_s']:g}/s"} for row in rows]
    draw_bars(figure, titled, group="title", bar="policy", value="gap_p99_s", label="p99 gap, s")


def main() -> None:
    parser = make_parser(__doc__, quick="6 seconds each instead of 15")
    parser.add_argument("--model", choices=sorted(SHAPES), default="llama-3-8b")
    parser.add_argument("--kv-gib", type=float, default=16.0)
    parser.add_argument("--rate", type=float, action="append", help="requests a second; again for several")
    parser.add_argument("--tbt-s", type=float, default=_TBT_S, help="target of every request (default: %(default)s)")
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES))
    parser.add_argument("--eager", action="store_true", help="decode launch by launch")
    run_script(parser, ROW_KEY, measure_on_gpu, show, draw)


if __name__ == "__main__":
    main()
