"""muxfleet beside what a user would pick instead: the same checkpoint, the same cores, one client, blocks by turns.

    python benchmarks/peers.py --json FILE [--quick] [--systems muxfleet,vllm] [--work decode,prefill,chat,mix,models]
                               [--checkpoint smollm2-135m] [--rates chat=1,2 --every-rate]

Each peer is installed into an environment of its own, `.peers/NAME`, at first use (vLLM: 3.5 GB; llama.cpp is built
for this CPU). A block starts a system, asks all the work of it and ends it; systems alternate, each round begins with
another. Work: decode at batch 1, 8, 32; prompts of 256, 1,024 and 4,096 tokens; Poisson chat with a tenth of
ShareGPT's lengths, and prompts of 512 to 2,048 tokens, at rising rates while 99 % of the gaps are within the target and
95 % of the first tokens; three models at 8:3:1, for which a peer needs a server each, with half the cores. The target
of a gap is twice the step of 8 sequences of the first block, the same for all; muxfleet is started with it, but for
that first block, which cannot know it (--tbt tells it beforehand).

It does not start above a load of 0.5, and drops a block during which others kept more than a tenth of a core busy. What
the file of --json holds already is not measured again: an interrupted run goes on where it was.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engines.llama_checkpoint import DEFAULT_CACHE
from peer_systems import work
from peer_systems.blocks import Block, SystemFailed, earlier_blocks, measured_blocks, rising
from peer_systems.checkpoints import CHECKPOINTS
from peer_systems.environments import FILLS, FOLDER, NotInstallable, environment_of
from peer_systems.serving import DidNotServe, MachineWatch, serving
from peer_systems.systems import SERVES_SEVERAL_MODELS, SYSTEMS, Place, Serving
from peer_systems.work import LOADS, given_rates
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts

SHAREGPT = Path(__file__).resolve().parents[2] / "shared" / "traces" / "sharegpt_8k_lengths.parquet"
MOST_LOAD = 0.5
MOST_FOREIGN_CORES = 0.1
WORK = ("decode", "prefill", *LOADS)
QUICK_WORK = ("decode", "prefill", "chat")
CHAT_SCALE = 0.1
FIRST_PORT = 18200
UNKNOWN_TBT_S = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`rates_per_s` by kind of load."""

    work: tuple[str, ...]
    rates_per_s: Mapping[str, tuple[float, ...]]
    every_rate: bool
    seconds: float
    prefill_tokens: tuple[int, ...]
    prompts: int
    ttft_s: float
    tbt_s: float | None

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Plan":
        wanted = tuple(args.work.split(",")) if args.work else QUICK_WORK if args.quick else WORK
        if unknown := set(wanted) - set(WORK):
            raise SystemExit(f"--work {','.join(sorted(unknown))}: unknown; name some of {','.join(WORK)}")
        chat, mix = (
            ((0.5, 1.0, 2.0), (0.2, 0.4))
            if args.quick
            else ((0.25, 0.5, 1, 1.4, 2, 2.8, 4, 5.6), (0.1, 0.2, 0.4, 0.6, 0.8, 1.1))
        )
        return cls(
            work=wanted,
            rates_per_s={"chat": chat, "mix": mix, "models": chat} | given_rates(args.rates),
            every_rate=args.every_rate,
            seconds=args.seconds or (15.0 if args.quick else 60.0),
            prefill_tokens=work.PREFILL_TOKENS[: 2 if args.quick else 3],
            prompts=2 if args.quick else 4,
            ttft_s=args.ttft,
            tbt_s=args.tbt,
        )


class Measuring:
    """One block of one system."""

    def __init__(
        self, plan: Plan, checkpoint: Path, watch: MachineWatch, cores: Sequence[int], tbt_s: float | None
    ) -> None:
        self._plan, self._checkpoint, self._watch, self._cores = plan, checkpoint, watch, cores
        self._folder = Path(tempfile.mkdtemp(prefix="muxfleet-peers-"))
        self._lengths = {"chat": work.sharegpt_lengths(SHAREGPT, CHAT_SCALE), "mix": work.mix_lengths()}
        self.tbt_s = tbt_s

    def __call__(self, system: str) -> dict[str, Any]:
        """Raises SystemFailed."""
        print(f"{time.strftime('%H:%M:%S')} {system}", file=sys.stderr)
        try:
            figures = self._of_one_model(system)
            if "models" in self._plan.work:
                figures |= self._of_three_models(system)
        except (NotInstallable, DidNotServe) as error:
            raise SystemFailed(str(error)) from error
        return figures

    def _of_one_model(self, system: str) -> dict[str, Any]:
        (one,) = self._servings(system, ["m0"])
        figures: dict[str, Any] = {}
        with serving([one], self._log(system), self._watch) as start_s:
            ask = partial(work.asked, port=one.port, model="m0", folder=self._folder)
            figures["start_s"] = round(start_s, 1)
            if "decode" in self._plan.work:
                for batch in work.DECODE_BATCHES:
                    figures[f"decode {batch}"] = work.decode_figures(ask(work.decode_requests(batch)))
                self._set_target(figures["decode 8"]["step_s"])
            if "prefill" in self._plan.work:
                for tokens in self._plan.prefill_tokens:
                    answers = ask(work.prefill_requests(tokens, self._plan.prompts))
                    figures[f"prefill {tokens}"] = work.prefill_figures(answers)
            for kind in ("chat", "mix"):
                if kind in self._plan.work:

                    def attempt(rate: float, kind: str = kind) -> dict[str, Any]:
                        return self._judged(ask(work.chat_requests(self._lengths[kind], rate, self._plan.seconds, 0)))

                    figures[kind] = self._goodput(kind, attempt)
        return figures

    def _of_three_models(self, system: str) -> dict[str, Any]:
        servings = self._servings(system, list(work.SHARES))
        ports = {model: one.port for one in servings for model in one.models}

        def attempt(rate: float) -> dict[str, Any]:
            asked = {
                model: (
                    work.chat_requests(
                        self._lengths["chat"], rate * share / sum(work.SHARES.values()), self._plan.seconds, seed
                    ),
                    ports[model],
                )
                for seed, (model, share) in enumerate(work.SHARES.items())
            }
            return self._judged(
                [a for of_one in work.asked_together(asked, folder=self._folder).values() for a in of_one]
            )

        with serving(servings, self._log(system), self._watch) as start_s:
            return {"models": {"start_s": round(start_s, 1), **self._goodput("models", attempt)}}

    def _servings(self, system: str, models: Sequence[str]) -> list[Serving]:
        environment = None if system == "muxfleet" else environment_of(system, FILLS[system])
        if system not in SYSTEMS:
            raise NotInstallable(f"{system} is not served here")
        serve = SYSTEMS[system]
        self._log(system).parent.mkdir(parents=True, exist_ok=True)
        place = partial(Place, folder=self._folder, ttft_s=self._plan.ttft_s, tbt_s=self.tbt_s or UNKNOWN_TBT_S)
        if system in SERVES_SEVERAL_MODELS or len(models) == 1:
            return [serve(environment, self._checkpoint, models, self._cores, place(port=FIRST_PORT))]
        half = max(1, len(self._cores) // 2)
        return [
            serve(
                environment,
                self._checkpoint,
                [model],
                self._cores[:half] if number == 0 else self._cores[half:] or self._cores,
                place(port=FIRST_PORT + number),
            )
            for number, model in enumerate(models)
        ]

    def _judged(self, answers: Sequence[work.Answer]) -> dict[str, Any]:
        assert self.tbt_s is not None, "set before any load"
        return work.load_figures(answers, ttft_s=self._plan.ttft_s, tbt_s=self.tbt_s)

    def _goodput(self, kind: str, attempt: Callable[[float], Mapping[str, Any]]) -> dict[str, Any]:
        goodput, tried = rising(self._plan.rates_per_s[kind], attempt, every=self._plan.every_rate)
        return {"goodput_per_s": goodput, "tried": tried}

    def _set_target(self, step_s: float | None) -> None:
        if self.tbt_s is None and step_s is not None:
            self.tbt_s = 2 * step_s

    def _log(self, system: str) -> Path:
        return FOLDER / "logs" / f"{system}.log"


def shown(blocks: Sequence[Block]) -> list[dict[str, object]]:
    """Medians over rounds, a row per system."""
    rows = []
    for system in dict.fromkeys(block.system for block in blocks):
        own = [block.figures for block in blocks if block.system == system and block.figures is not None]
        row: dict[str, object] = {"system": system, "start_s": _median([f["start_s"] for f in own])}
        for name in dict.fromkeys(name for figures in own for name in figures if name != "start_s"):
            key = "goodput_per_s" if name in LOADS else "tokens_per_s"
            row[name] = _median([f[name][key] for f in own])
        rows.append(row)
    return rows


def say_dropped(block: Block) -> None:
    print(f"{block.system}: dropped, others kept {block.foreign_cores:.2f} cores busy", file=sys.stderr)


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def main() -> None:
    parser = make_parser(__doc__, quick="one round, short prompts and loads, no mix and no three models")
    parser.add_argument("--systems", default="muxfleet,vllm,llama_cpp,openvino,sglang", help="default: all there are")
    parser.add_argument("--work", help=f"some of {','.join(WORK)}; default: all, with --quick {','.join(QUICK_WORK)}")
    parser.add_argument(
        "--checkpoint", default="random-100m", choices=list(CHECKPOINTS), help="default: random-100m, a Llama"
    )
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 1")
    parser.add_argument("--ttft", type=float, default=5.0, help="seconds that a first token may take; default 5")
    parser.add_argument("--tbt", type=float, help="seconds of a gap; default: twice the first block's step of 8")
    parser.add_argument("--seconds", type=float, help="of a rate of chat, mix or models; default 60, with --quick 15")
    parser.add_argument(
        "--rates", nargs="+", default=(), metavar="KIND=R,R", help="requests/s to try, rising: mix=0.4 chat=1,2"
    )
    parser.add_argument("--every-rate", action="store_true", help="go on after the first rate that is too much")
    parser.add_argument("--any-load", action="store_true", help="try it on a busy machine: the figures mean nothing")
    parser.add_argument("--install", action="store_true", help="install the peers and end")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the checkpoint is written")
    args = parser.parse_args()
    systems, plan = args.systems.split(","), Plan.of(args)
    if unknown := set(systems) - {"muxfleet", *FILLS}:
        parser.error(f"--systems {','.join(sorted(unknown))}: unknown; name some of muxfleet,{','.join(FILLS)}")
    left_out = installed(systems)
    if args.install:
        return
    if (load := os.getloadavg()[0]) > MOST_LOAD and not args.any_load:
        parser.error(f"the load is {load:.1f}, above {MOST_LOAD}: wait until nothing else runs, or try with --any-load")
    known, known_tbt_s = earlier_blocks(args.json, args.checkpoint, asdict(plan))
    if not set(LOADS).isdisjoint(plan.work) and "decode" not in plan.work and plan.tbt_s is None:
        parser.error("--work without decode: give --tbt, the target of a gap")
    checkpoint, watch = CHECKPOINTS[args.checkpoint](args.cache), MachineWatch()
    measure = Measuring(plan, checkpoint, watch, sorted(os.sched_getaffinity(0)), plan.tbt_s or known_tbt_s)

    def keep(blocks: Sequence[Block]) -> None:
        rows, setting = [asdict(block) for block in blocks], asdict(plan)
        write_report(
            args.json,
            machine_facts(),
            rows,
            checkpoint=args.checkpoint,
            plan=setting,
            tbt_target_s=measure.tbt_s,
            left_out=left_out,
            load=load,
        )

    blocks = measured_blocks(
        [name for name in systems if name not in left_out],
        args.rounds or (1 if args.quick else 3),
        measure,
        watch,
        most_foreign_cores=float("inf") if args.any_load else MOST_FOREIGN_CORES,
        known=known,
        keep=keep,
        dropped=say_dropped,
    )
    names = [
        "start_s",
        *dict.fromkeys(name for row in shown(blocks) for name in row if name not in ("system", "start_s")),
    ]
    columns = {"system": "{system}", **{name: f"{{{name}:.1f}}" for name in names}}
    print_table(
        shown(blocks), columns, title=f"tokens/s; goodput in requests/s, gaps within {measure.tbt_s or 0:.3f} s"
    )
    for name, reason in left_out.items() | {(b.system, b.reason) for b in blocks if b.reason is not None}:
        print(f"{name}: {reason}")


def installed(systems: Sequence[str]) -> dict[str, str]:
    """Installs what is missing; why a system is left out, by its name."""
    left_out = {}
    for name in systems:
        if name != "muxfleet":
            try:
                environment_of(name, FILLS[name])
            except NotInstallable as error:
                left_out[name] = str(error)
    return left_out


if __name__ == "__main__":
    main()
