"""What an overloaded unit is sent: real lengths, Poisson arrivals, one target for each kind of request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from fleets.virtual_fleet import Coming

from deploy.simulation.coming_requests import simulated_prompt
from pdmux_actor.messages import Slo
from traces.readers.registry import iter_trace
from traces.record import TraceRecord

TRACES = Path(__file__).parents[3] / "shared" / "traces"
_VOCABULARY = 128_256
_MOONCAKE_BLOCK_TOKENS = 512
_LONGEST_AGENT_TOKENS = 32_768
CHAT, DOCUMENT, AGENT = "chat", "document", "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Long prompts among the others. Their lengths are drawn evenly on a log scale."""

    share: float  # of the requests
    least_tokens: int
    most_tokens: int
    output_tokens: int
    slo: Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadWorkload:
    """`trace` is a file of `../shared/traces`; agents keep its order, since their prompts share what came before.
    `flood_per_s` is more than the unit can take by far.
    """

    name: str
    trace: str
    kind: str
    slo: Slo
    flood_per_s: float = 40.0
    documents: Documents | None = None
    block_tokens: int | None = None
    longest_tokens: int | None = None

    def kinds(self) -> Sequence[str]:
        return (self.kind,) if self.documents is None else (self.kind, DOCUMENT)


_CHAT_SLO = Slo(ttft_s=1.0, tbt_s=0.05)
_LONG_WAIT_SLO = Slo(ttft_s=30.0, tbt_s=0.05)
_DEFAULT_SLO = Slo(ttft_s=2.0, tbt_s=0.2)
_SHAREGPT = "sharegpt_8k_lengths.parquet"


def _mixed(slo: Slo) -> Documents:
    return Documents(share=0.05, least_tokens=8192, most_tokens=32_768, output_tokens=200, slo=slo)


WORKLOADS: Mapping[str, OverloadWorkload] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            OverloadWorkload(name="chat", trace=_SHAREGPT, kind=CHAT, slo=_CHAT_SLO),
            OverloadWorkload(name="chat-default-slo", trace=_SHAREGPT, kind=CHAT, slo=_DEFAULT_SLO),
            OverloadWorkload(name="mixed", trace=_SHAREGPT, kind=CHAT, slo=_CHAT_SLO, documents=_mixed(_LONG_WAIT_SLO)),
            OverloadWorkload(
                name="mixed-one-target", trace=_SHAREGPT, kind=CHAT, slo=_CHAT_SLO, documents=_mixed(_CHAT_SLO)
            ),
            OverloadWorkload(
                name="documents",
                trace=_SHAREGPT,
                kind=CHAT,
                slo=_CHAT_SLO,
                documents=Documents(
                    share=0.01, least_tokens=100_000, most_tokens=100_000, output_tokens=200, slo=_LONG_WAIT_SLO
                ),
            ),
            OverloadWorkload(
                name="agents",
                trace="mooncake_synthetic.parquet",
                kind=AGENT,
                slo=Slo(ttft_s=2.0, tbt_s=0.05),
                flood_per_s=12.0,
                block_tokens=_MOONCAKE_BLOCK_TOKENS,
                longest_tokens=_LONGEST_AGENT_TOKENS,
            ),
        )
    }
)


def coming_requests(
    workload: OverloadWorkload, *, model: str, rate_per_s: float, duration_s: float, seed: int, traces: Path = TRACES
) -> list[Coming]:
    """The same requests in the same order at any rate: a higher one only sends them faster, and more of them."""
    rng = np.random.default_rng(seed)
    records = _records(workload, traces)
    draws = np.random.default_rng(seed + 1)
    coming: list[Coming] = []
    at_s = 0.0
    while (at_s := at_s + float(rng.exponential(1 / rate_per_s))) < duration_s:
        record, slo, kind = _draw(workload, records, len(coming), draws)
        prompt: Callable[[], tuple[int, ...]] = partial(
            simulated_prompt, record, index=len(coming), block_tokens=workload.block_tokens, vocab_size=_VOCABULARY
        )
        coming.append(
            Coming(
                at_s=at_s,
                model=model,
                prompt=prompt,
                output_tokens=max(1, record.output_tokens),
                slo=slo,
                kind=kind,
            )
        )
    return coming


def _records(workload: OverloadWorkload, traces: Path) -> list[TraceRecord]:
    path = traces / workload.trace
    if not path.exists():
        raise SystemExit(f"no trace {path}: give the folder of the public traces with --traces")
    longest = workload.longest_tokens
    return [r for r in iter_trace(path) if longest is None or r.input_tokens <= longest]


def _draw(
    workload: OverloadWorkload, records: Sequence[TraceRecord], place: int, rng: np.random.Generator
) -> tuple[TraceRecord, Slo, str]:
    chance, where, length = rng.random(3)
    documents = workload.documents
    if documents is not None and chance < documents.share:
        ratio = documents.most_tokens / documents.least_tokens
        tokens = round(documents.least_tokens * ratio**length)
        record = TraceRecord(arrival_s=0.0, input_tokens=tokens, output_tokens=documents.output_tokens)
        return record, documents.slo, DOCUMENT
    ordered = workload.block_tokens is not None
    record = records[place % len(records) if ordered else int(where * len(records))]
    return record, workload.slo, workload.kind
