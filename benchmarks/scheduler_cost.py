"""CPU time of the scheduler per decode step: `decide` + `on_completion`, without any executor.

    python benchmarks/scheduler_cost.py [--json FILE] [--quick]

Every step decodes all running sequences of one model under the `mux` policy with the roofline latency model, as the
engine does. Reported is the median over steps of this process's CPU time, and the 10th and 90th percentile.
"""

import statistics
import time
from collections.abc import Mapping

from engines.model_specs import llama
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import GenerateRequest, SampledToken, SamplingParams, Slo
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.launch import DropPrefill, LaunchCompletion, Repartition, sampling_sequences
from pdmux_actor.scheduling.policies.registry import make_policy
from pdmux_actor.scheduling.scheduler import Scheduler
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.devices import laptop_cpu
from profiler.roofline import RooflineLatency

BATCHES = (1, 16, 64, 256)
DEVICE = laptop_cpu(num_cores=2, memory_bytes=8 * 1024**3)
TOKEN = SampledToken(7)


def make_scheduler(num_sequences: int) -> Scheduler:
    spec = llama(16, 1024, 2816, 16, 4, head_dim=64, vocab_size=32000, max_position_embeddings=32768)
    info = ModelInfo(
        model="m",
        spec=spec,
        geometry=KvGeometry.of(spec, 8192),
        eos_token_ids=frozenset(),
        max_model_len=32768,
    )
    blocks = num_sequences * 300 * info.geometry.blocks_per_row
    scheduler = Scheduler(
        policy=make_policy("mux"),
        settings=SchedulerSettings(max_running_sequences=num_sequences, max_batch_tokens=1 << 20),
        pool=BlockPool(blocks),
        device=DEVICE,
        latency=RooflineLatency(DEVICE),
    )
    scheduler.attach_model(info, blocks)
    sampling = SamplingParams(max_tokens=1 << 20, temperature=0.0)
    for i in range(num_sequences):
        request = GenerateRequest(
            request_id=str(i),
            model="m",
            prompt_token_ids=tuple(range(1, 65 + 3 * i)),
            sampling=sampling,
            slo=Slo(ttft_s=1.0, tbt_s=0.05),
        )
        scheduler.on_event(Arrival(request), 0.0)
    return scheduler


def step(scheduler: Scheduler, now_s: float) -> float:
    """One step; returns the CPU seconds of decide + on_completion, without what stands for the executor."""
    started = time.thread_time()
    launches = scheduler.decide(now_s)
    cpu_s = time.thread_time() - started
    for launch in launches:
        if isinstance(launch, Repartition | DropPrefill):
            continue
        sampling = sampling_sequences(launch, 16)
        done = LaunchCompletion(
            launch=launch, started_s=now_s, finished_s=now_s + 0.01, tokens=tuple((TOKEN,) for _ in sampling)
        )
        started = time.thread_time()
        scheduler.on_completion(done)
        cpu_s += time.thread_time() - started
    scheduler.take_token_events()
    return cpu_s


def measure(num_sequences: int, num_steps: int) -> dict[str, float]:
    scheduler = make_scheduler(num_sequences)
    now_s = 0.0
    while scheduler.load_report().models[0].output_tokens_total < num_sequences:
        now_s += 0.01
        step(scheduler, now_s)
    samples_us = []
    for _ in range(num_steps):
        now_s += 0.01
        samples_us.append(1e6 * step(scheduler, now_s))
    deciles = statistics.quantiles(samples_us, n=10)
    return {
        "running": num_sequences,
        "median_us": statistics.median(samples_us),
        "p10_us": deciles[0],
        "p90_us": deciles[-1],
        "us_per_sequence": statistics.median(samples_us) / num_sequences,
    }


COLUMNS: Mapping[str, str] = {
    "running": "{running}",
    "median us": "{median_us:.1f}",
    "p10": "{p10_us:.1f}",
    "p90": "{p90_us:.1f}",
    "us/sequence": "{us_per_sequence:.2f}",
}


def main() -> None:
    args = make_parser(__doc__, quick="fewer steps").parse_args()
    num_steps = 200 if args.quick else 2000
    rows = [measure(n, num_steps) for n in BATCHES]
    print_table(rows, COLUMNS, title="scheduler CPU time per step")
    write_report(args.json, machine_facts(), rows, steps=num_steps)


if __name__ == "__main__":
    main()
