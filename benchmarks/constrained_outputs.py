"""Are outputs that have a form always valid, and whole? Fifty JSON schemas, ten requests each, judged by jsonschema.

    python benchmarks/constrained_outputs.py [--json FILE] [--quick] [--model FOLDER ...]

On the real CPU engine (scheduler, prefix cache, batches), temperature 1, another seed for every request. Two models:
the demo's trained one, and one of random weights, which is the hardest: what the mask lets through is all as likely.
`valid` are those that jsonschema accepts; `whole` those that came to their end within `max_tokens`.
"""

import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
from engines.constrained_model import ConstrainedModel
from report.command import make_parser, print_table, write_report
from report.machine_facts import machine_facts
from rich.progress import Progress

from deploy.local.demo_weights import demo_weights
from pdmux_actor.engine import Inbox, build_engine
from pdmux_actor.messages import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Slo,
    StructuredKind,
    StructuredOutput,
    TokenEvent,
)
from pdmux_actor.models.random_checkpoint import DEMO_SHAPES, write_random_checkpoint
from pdmux_actor.scheduling.events import Arrival, AttachModel, Stop
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.roofline import RooflineLatency

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from json_schemas import SCHEMAS

MAX_TOKENS = 1500
PROMPT = "Answer in JSON.\n"
RUNNING = 64
ROUND = 2
COLUMNS: Mapping[str, str] = {
    "model": "{model}",
    "requests": "{requests}",
    "whole": "{whole}",
    "valid": "{valid}",
    "tokens p50": "{tokens_p50}",
    "tokens most": "{tokens_most}",
    "compile 50 schemas s": "{compile_s:.1f}",
    "seconds": "{seconds:.0f}",
}


@dataclass(slots=True)
class Outputs:
    """By request."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    finish: dict[str, FinishReason] = field(default_factory=dict)
    ended: threading.Condition = field(default_factory=threading.Condition)

    def take(self, events: Sequence[TokenEvent]) -> None:
        with self.ended:
            for event in events:
                assert event.error is None, event.error
                self.tokens.setdefault(event.request_id, []).extend(token.token_id for token in event.tokens)
                if event.finish is not None:
                    self.finish[event.request_id] = event.finish
            self.ended.notify()


@contextmanager
def running(model: ConstrainedModel) -> Iterator[tuple[Inbox, Outputs]]:
    """Its engine, and its outputs as they grow."""
    outputs = Outputs()
    loop, inbox = build_engine(
        model.executor,
        policy="mux",
        settings=SchedulerSettings(max_running_sequences=RUNNING),
        latency=RooflineLatency(model.executor.device),
        outbox=outputs.take,
    )
    geometry = model.info.geometry
    rows = model.executor.total_blocks // geometry.blocks_per_row
    inbox.put(AttachModel(model.info, rows * geometry.blocks_per_row))
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield inbox, outputs
    finally:
        inbox.put(Stop())
        thread.join(30)


def measure(name: str, folder: Path, rounds: int) -> Iterator[dict[str, float | str]]:
    """The row as it stands after each round, in which each schema is asked for ROUND times."""
    began_s = time.perf_counter()
    model = ConstrainedModel(folder, "bfloat16")
    compiler = model.new_compiler()
    prompt = tuple(model.tokenizer.encode(PROMPT).ids)
    forms = [StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=json.dumps(schema)) for schema in SCHEMAS]
    compiling_s = time.perf_counter()
    for form in forms:
        compiler.constraint(form, len(prompt), prompt)
    compile_s = time.perf_counter() - compiling_s
    requests = 0
    with running(model) as (inbox, outputs), Progress(transient=True) as progress:
        bar = progress.add_task(name, total=rounds * ROUND * len(SCHEMAS))
        for seed in range(rounds * ROUND):
            for place, form in enumerate(forms):
                request = GenerateRequest(
                    request_id=f"{place}-{seed}",
                    model="m",
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(max_tokens=MAX_TOKENS, seed=1000 * place + seed, structured_output=form),
                    slo=Slo(ttft_s=600.0, tbt_s=10.0),
                )
                inbox.put(Arrival(request, compiler.constraint(form, len(prompt), prompt)))
                requests += 1
            if (seed + 1) % ROUND:
                continue
            while len(outputs.finish) < requests:
                with outputs.ended:
                    outputs.ended.wait(1.0)
                progress.update(bar, completed=len(outputs.finish))
            yield {
                "model": name,
                "requests": requests,
                **judged(model, outputs),
                "compile_s": compile_s,
                "seconds": time.perf_counter() - began_s,
            }
    model.close()


def judged(model: ConstrainedModel, outputs: Outputs) -> dict[str, float | str]:
    counts: Counter[str] = Counter()
    for request_id, token_ids in outputs.tokens.items():
        counts["whole"] += outputs.finish[request_id] is FinishReason.STOP
        text = model.tokenizer.decode(token_ids, skip_special_tokens=True)
        counts["valid"] += is_valid(text, SCHEMAS[int(request_id.partition("-")[0])], request_id)
    lengths = sorted(map(len, outputs.tokens.values()))
    return {**counts, "tokens_p50": lengths[len(lengths) // 2], "tokens_most": lengths[-1]}


def is_valid(text: str, schema: object, request_id: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"{request_id}: {text!r}: {str(error)[:200]}", file=sys.stderr)
        return False
    return True


def main() -> None:
    parser = make_parser(__doc__, quick="two requests for each schema")
    parser.add_argument("--model", type=Path, action="append", help="default: a random one, and the demo's trained one")
    args = parser.parse_args()
    rows: dict[str, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        models = {folder.name: folder for folder in args.model or ()}
        if not models:
            models = {"random": Path(scratch) / "random", "SmolLM2-135M": demo_weights(lambda num_bytes: None).llama}
            write_random_checkpoint(models["random"], DEMO_SHAPES["demo-llama"], 0)
        for name, folder in models.items():
            for row in measure(name, folder, 1 if args.quick else 5):
                rows[name] = row  # whoever ends it early keeps the rounds that are through
                write_report(
                    args.json, machine_facts(), list(rows.values()), schemas=len(SCHEMAS), max_tokens=MAX_TOKENS
                )
    print_table(list(rows.values()), COLUMNS)


if __name__ == "__main__":
    main()
