"""What is asked of every system, and the figures of its answers. One client for all: `muxfleet bench`, open loop."""

import csv
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

SHARES = {"m0": 8, "m1": 3, "m2": 1}  # of requests, among three models
DECODE_BATCHES = (1, 8, 32)
PREFILL_TOKENS = (256, 1024, 4096)
_PROMPT_TOKENS = 16
_NEW_TOKENS = 128  # so many that the first sequence still decodes when the last prompt of 32 is done
_SPACE_TOKENS_PER_S = 200  # prompts one after the other: a system at this speed has just finished
_DAY = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`ttft_s` None: it failed."""

    ttft_s: float | None
    sent_s: float
    gaps_s: tuple[float, ...]
    input_tokens: int
    output_tokens: int


def decode_requests(batch: int) -> list[Request]:
    return [Request(arrival_s=0.0, input_tokens=_PROMPT_TOKENS, output_tokens=_NEW_TOKENS) for _ in range(batch)]


def prefill_requests(tokens: int, count: int = 3) -> list[Request]:
    space_s = tokens / _SPACE_TOKENS_PER_S + 1
    return [Request(arrival_s=i * space_s, input_tokens=tokens, output_tokens=1) for i in range(count)]


def chat_requests(lengths: Sequence[tuple[int, int]], rate_per_s: float, seconds: float, seed: int) -> list[Request]:
    """Poisson arrivals, lengths drawn from `lengths`; the first of several rates is the last one stretched."""
    rng = np.random.default_rng(seed)
    count = max(4, round(rate_per_s * seconds))
    arrivals = np.cumsum(rng.exponential(1.0, count)) / rate_per_s
    chosen = rng.integers(0, len(lengths), count)
    return [
        Request(arrival_s=float(at), input_tokens=lengths[i][0], output_tokens=lengths[i][1])
        for at, i in zip(arrivals - arrivals[0], chosen, strict=True)
    ]


def mix_lengths(seed: int = 0) -> list[tuple[int, int]]:
    """Prompts of 512 to 2,048 tokens, answers of 32 to 96."""
    rng = np.random.default_rng(seed)
    return [(int(p), int(o)) for p, o in zip(rng.integers(512, 2049, 64), rng.integers(32, 97, 64), strict=True)]


def sharegpt_lengths(trace: Path, scale: float) -> list[tuple[int, int]]:
    table = pq.read_table(trace, columns=["input_tokens", "output_tokens"]).to_pydict()
    pairs = zip(table["input_tokens"], table["output_tokens"], strict=True)
    return [(max(4, min(2048, round(p * scale))), max(4, min(256, round(o * scale)))) for p, o in pairs]


def asked(
    requests: Sequence[Request], *, port: int, model: str, folder: Path, timeout_s: float = 180.0
) -> list[Answer]:
    """Sends them, in a process of the client's own, and waits until all are answered."""
    return asked_together({model: (requests, port)}, folder=folder, timeout_s=timeout_s)[model]


def asked_together(
    by_model: Mapping[str, tuple[Sequence[Request], int]], *, folder: Path, timeout_s: float = 180.0
) -> dict[str, list[Answer]]:
    """The same for several models at once, each on its port: requests and port by model."""
    folder.mkdir(parents=True, exist_ok=True)
    clients = {}
    for model, (requests, port) in by_model.items():
        trace, rows = folder / f"{model}.csv", folder / f"{model}.parquet"
        rows.unlink(missing_ok=True)
        _write_trace(trace, requests)
        command = [str(Path(sys.executable).parent / "muxfleet"), "bench", f"http://127.0.0.1:{port}"]
        command += ["--trace", str(trace), "--model", model, "--timeout", str(timeout_s), "--out", str(rows)]
        clients[model] = (subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE), rows)
    answers = {}
    for model, (client, rows) in clients.items():
        _, errors = client.communicate(timeout=timeout_s + 600.0)
        if not rows.exists():
            raise RuntimeError(f"muxfleet bench: {errors.decode(errors='replace')[-2000:]}")
        answers[model] = _answers(rows)
    return answers


def decode_figures(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Tokens/s while all sequences decode, and the median step."""
    done = [a for a in answers if a.ttft_s is not None and a.gaps_s]
    if len(done) < len(answers):
        return {"tokens_per_s": None, "step_s": None}
    times = [a.sent_s + (a.ttft_s or 0.0) + np.concatenate(([0.0], np.cumsum(a.gaps_s))) for a in done]
    from_s, to_s = max(t[0] for t in times), min(t[-1] for t in times)
    counted = sum(int(((t > from_s) & (t <= to_s)).sum()) for t in times)
    gaps = [gap for a in done for gap in a.gaps_s]
    # A server that puts several tokens into a chunk has fewer gaps than tokens.
    tokens_per_gap = sum(a.output_tokens - 1 for a in done) / len(gaps)
    rate = counted * tokens_per_gap / (to_s - from_s) if to_s > from_s else None
    return {"tokens_per_s": rate, "step_s": statistics.median(gaps) / max(1.0, tokens_per_gap)}


def prefill_figures(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The first prompt warms up."""
    speeds = [a.input_tokens / a.ttft_s for a in answers[1:] if a.ttft_s]
    return {"tokens_per_s": statistics.median(speeds) if speeds else None}


def load_figures(answers: Sequence[Answer], *, ttft_s: float, tbt_s: float) -> dict[str, float | bool | None]:
    """`passed`: 99 % of the gaps and 95 % of the first tokens were in time, and every request was answered."""
    gaps = [gap for a in answers for gap in a.gaps_s]
    firsts = [a.ttft_s for a in answers if a.ttft_s is not None]
    gaps_in_time = sum(gap <= tbt_s for gap in gaps) / len(gaps) if gaps else 0.0
    firsts_in_time = sum(first <= ttft_s for first in firsts) / len(answers) if answers else 0.0
    return {
        "passed": len(firsts) == len(answers) and gaps_in_time >= 0.99 and firsts_in_time >= 0.95,
        "gaps_in_time": gaps_in_time,
        "first_tokens_in_time": firsts_in_time,
        "ttft_p50_s": _quantile(firsts, 0.5),
        "ttft_p95_s": _quantile(firsts, 0.95),
        "tbt_p95_s": _quantile(gaps, 0.95),
        "tbt_p99_s": _quantile(gaps, 0.99),
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _write_trace(path: Path, requests: Sequence[Request]) -> None:
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for request in requests:
            at = _DAY + timedelta(seconds=request.arrival_s)
            writer.writerow([at.strftime("%Y-%m-%d %H:%M:%S.%f"), request.input_tokens, request.output_tokens])


def _answers(rows: Path) -> list[Answer]:
    read = pq.read_table(rows).to_pylist()
    return [
        Answer(
            ttft_s=row["ttft_s"] if row["ending"] == "finished" else None,
            sent_s=row["sent_s"],
            gaps_s=tuple(row["gaps_s"]),
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
        )
        for row in read
    ]


LOADS = ("chat", "mix", "models")


def given_rates(words: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Reads words such as chat=1,2. Raises SystemExit that says what is wrong."""
    rates = {}
    for word in words:
        kind, _, numbers = word.partition("=")
        try:
            of_kind = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            of_kind = ()
        if kind not in LOADS or not of_kind or not min(of_kind) > 0:
            raise SystemExit(f"--rates {word}: give one of {', '.join(LOADS)} and its requests/s, like mix=0.4,0.8")
        rates[kind] = of_kind
    return rates
