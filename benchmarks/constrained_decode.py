"""What forms of outputs cost: a decode step of constrained sequences beside one of free ones, masks, and compiling.

    python benchmarks/constrained_decode.py [--json FILE] [--quick] [--model FOLDER]

On the CPU executor, with launches made by hand: as many sequences with a form as without one, at temperature 1, grow
token by token; the two steps take turns, and the ratio is that of each turn. Masks are timed apart: what it takes to
say what may follow, and to keep the logits to that. The model is the demo's trained one, or any folder.
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engines.constrained_model import ConstrainedModel
from engines.hand_made_launches import HandMadeLaunches
from report.command import make_parser, print_table, ratio_of_turns, write_report
from report.machine_facts import machine_facts

from deploy.local.demo_weights import demo_weights
from pdmux_actor.executor.constrained_rows import ConstrainedRows
from pdmux_actor.messages import StructuredKind, StructuredOutput
from pdmux_actor.scheduling.sequence import TokenSequence

SEQUENCES = 16
CONTEXT_TOKENS = 128
ROOM_TOKENS = 128
_NAME = {"type": "string", "maxLength": 20}
_AGE = {"type": "integer", "minimum": 0, "maximum": 150}
_PERSON = {
    "type": "object",
    "properties": {"name": _NAME, "age": _AGE, "role": {"enum": ["a", "b"]}},
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}
# None of them comes to an end while it is measured.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "records": {"type": "array", "items": _PERSON, "minItems": 200},
    "strings": {"type": "array", "items": {"type": "string"}, "minItems": 2000},
    "one long string": {"type": "string", "minLength": 5000},
    "unions": {"type": "array", "items": {"anyOf": [_PERSON, {"type": "number"}, {"type": "null"}]}, "minItems": 400},
    "string up to 2000": {"type": "array", "items": {"type": "string", "maxLength": 2000}, "minItems": 2000},
}
COLUMNS: Mapping[str, str] = {
    "form": "{form}",
    "free step ms": "{free_ms:.2f}",
    "constrained ms": "{constrained_ms:.2f}",
    "ratio (quartiles)": "{ratio:.3f} ({ratio_low:.3f}-{ratio_high:.3f})",
    "fill us/seq": "{fill_us:.0f}",
    "apply us/seq": "{apply_us:.0f}",
    "mask/free step": "{mask_share:.1%}",
    "compile ms": "{compile_ms:.0f}",
    "again ms": "{again_ms:.2f}",
}


def measure(model: ConstrainedModel, launches: HandMadeLaunches, form: str, turns: int) -> dict[str, float | str]:
    """`mask_share` is the mask's time in a free step's; `again_ms` a compile of what was compiled before."""
    compiler = model.new_compiler()
    asked = StructuredOutput(kind=StructuredKind.JSON_SCHEMA, text=json.dumps(FORMS[form]))
    compiles_s = []
    free, constrained = (sequences(launches) for _ in range(2))
    for sequence in constrained:
        began_s = time.perf_counter()
        sequence.constraint = compiler.constraint(asked, CONTEXT_TOKENS, sequence.token_ids)
        compiles_s.append(time.perf_counter() - began_s)
    taken_s: dict[str, list[float]] = {"free": [], "constrained": []}
    fills_s, applies_s = [], []
    for turn in range(turns + 2):
        order = [("free", free), ("constrained", constrained)]
        for name, batch in order if turn % 2 else reversed(order):
            step_s = step(launches, batch)
            if turn > 1:
                taken_s[name].append(step_s)
        fill_s, apply_s = mask_s(constrained, model.info.spec.vocab_size)
        fills_s.append(fill_s)
        applies_s.append(apply_s)
    launches.free([*free, *constrained])
    fill_s, apply_s = statistics.fmean(fills_s), statistics.median(applies_s)
    free_s = statistics.median(taken_s["free"])
    return {
        "form": form,
        "free_ms": free_s * 1e3,
        "constrained_ms": statistics.median(taken_s["constrained"]) * 1e3,
        **ratio_of_turns(taken_s["constrained"], taken_s["free"]),
        "fill_us": fill_s / SEQUENCES * 1e6,
        "apply_us": apply_s / SEQUENCES * 1e6,
        "mask_share": (fill_s + apply_s) / free_s,
        "compile_ms": compiles_s[0] * 1e3,
        "again_ms": statistics.median(compiles_s[1:]) * 1e3,
    }


def sequences(launches: HandMadeLaunches) -> list[TokenSequence]:
    made = launches.sequences([CONTEXT_TOKENS] * SEQUENCES, ROOM_TOKENS)
    for seed, sequence in enumerate(made):
        sampling = replace(sequence.request.sampling, temperature=1.0, seed=seed)
        sequence.request = replace(sequence.request, sampling=sampling)
    return made


def step(launches: HandMadeLaunches, batch: Sequence[TokenSequence]) -> float:
    done = launches.run(launches.decode_launch(batch))
    for sequence, tokens in zip(batch, done.tokens, strict=True):
        sequence.token_ids += [token.token_id for token in tokens]
    return done.finished_s - done.started_s


def mask_s(batch: Sequence[TokenSequence], vocab_size: int) -> tuple[float, float]:
    """Of the token that the next step will draw: to fill, and to apply."""
    rows = ConstrainedRows.of(batch)
    assert rows is not None
    logits = torch.zeros(len(batch), vocab_size)
    began_s = time.perf_counter()
    words = rows.fill(vocab_size)
    filled_s = time.perf_counter()
    rows.apply(words, logits)
    return filled_s - began_s, time.perf_counter() - filled_s


def main() -> None:
    parser = make_parser(__doc__, quick="10 turns instead of 60")
    parser.add_argument("--model", type=Path, help="default: the demo's trained weights, fetched once")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    folder = args.model or demo_weights(lambda num_bytes: None).llama
    model = ConstrainedModel(folder, args.dtype)
    launches = HandMadeLaunches(model.executor, model.info)
    rows = []
    for form in FORMS:
        print(form, file=sys.stderr)
        rows.append(measure(model, launches, form, 10 if args.quick else 60))
    model.close()
    title = f"{SEQUENCES} sequences at {CONTEXT_TOKENS} tokens and more, vocabulary of {model.info.spec.vocab_size}"
    print_table(rows, COLUMNS, title=title)
    write_report(args.json, machine_facts(), rows, model=folder.name, dtype=args.dtype)


if __name__ == "__main__":
    main()
