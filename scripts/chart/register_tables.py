"""The tables in docs/ that list what a register holds."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from deploy.fleet_file.settings import EngineSection, PlacementSection
from pdmux_actor.backends.registry import BACKENDS
from pdmux_actor.scheduling.policies.registry import POLICIES
from placement.solvers.registry import SOLVERS
from profiler.devices import DEVICES
from profiler.families.entry import ModelFamily
from profiler.families.registry import all_families
from traces.readers.registry import READERS

_FAMILY_COLUMNS = (
    "architecture",
    "models",
    "native",
    "transformers",
    "SGLang",
    "CPU",
    "CUDA",
    "TP",
    "8 or 4 bits",
    "LoRA",
)


class MarksMissing(LookupError):
    """A page has no place for its generated part: write the two marks into it."""


def documents(root: Path) -> Mapping[Path, str]:
    """By page: its text with the table as the register has it."""
    return {root / page: with_table(root / page, name, table) for page, (name, table) in _tables().items()}


def with_table(page: Path, name: str, table: str) -> str:
    """The page's text with `table` between the marks `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    text = page.read_text()
    if begin not in text or end not in text:
        raise MarksMissing(f"{page}: no {begin.strip()} or {end.strip()}")
    before, rest = text.split(begin, maxsplit=1)
    return f"{before}{begin}{table}{end}{rest.split(end, maxsplit=1)[1]}"


def _divided_by(family: ModelFamily) -> Iterator[str]:
    """Whose units of several ranks (`mesh_gpus`) serve it."""
    if family.traits is not None:
        yield "native"
    if family.in_sglang and family.is_planned:
        yield "SGLang"


def _on_cpus(family: ModelFamily) -> Iterator[str]:
    if family.traits is not None:
        yield "native"
    if family.refusal is None:
        yield "transformers"


def _on_gpus(family: ModelFamily) -> Iterator[str]:
    if family.traits is not None and family.native_on_gpus:
        yield "native"
    if family.refusal is None and not family.changes_scores:
        yield "transformers (within its window)" if family.slides else "transformers"
    if family.in_sglang and family.is_planned:
        yield "SGLang"


def _quantised_by(family: ModelFamily) -> Iterator[str]:
    if family.traits is not None:
        yield "native"
    if family.is_rounded_by_transformers:
        yield "transformers (CPU)"
    if family.in_sglang and family.is_planned:
        yield "SGLang"


def _tables() -> Mapping[str, tuple[str, str]]:
    policies = ((policy.name, policy.rule, policy.source) for policy in POLICIES.values())
    solvers = ((solver.name, solver.rule) for solver in SOLVERS.values())
    devices = (
        (device.name, str(device.num_sms), f"{device.memory_bytes / 2**30:.0f} GiB", device.source)
        for device in DEVICES.values()
    )
    readers = ((reader.name, reader.files, reader.rows) for reader in READERS.values())
    families = (
        (
            family.name,
            family.models,
            "yes" if family.traits is not None else "",
            "yes" if family.refusal is None else f"no: {family.refusal}",
            "yes" if family.in_sglang and family.is_planned else "",
            ", ".join(_on_cpus(family)),
            ", ".join(_on_gpus(family)),
            ", ".join(_divided_by(family)),
            ", ".join(_quantised_by(family)),
            "native" if family.takes_adapters else "",
        )
        for _, family in sorted(all_families().items(), key=lambda item: (item[1].refusal is not None, item[0]))
    )
    backends = ((backend.name, backend.about, ", ".join(backend.kinds)) for backend in BACKENDS.values())
    return {
        "docs/sglang.md": (
            "backends",
            _table(
                ("backend", "what it is", "device"), backends, default=EngineSection.model_fields["backend"].default
            ),
        ),
        "docs/latency-models.md": (
            "devices",
            _table(("gpu_type", "SMs", "memory", "where its figures come from"), devices),
        ),
        "docs/models.md": (
            "families",
            _table(_FAMILY_COLUMNS, families),
        ),
        "docs/planner.md": (
            "solvers",
            _table(("name", "what it does"), solvers, default=PlacementSection.model_fields["solver"].default),
        ),
        "docs/simulation.md": ("readers", _table(("format", "files", "a row"), readers)),
        "docs/policies.md": (
            "policies",
            _table(("name", "rule", "source"), policies, default=EngineSection.model_fields["policy"].default),
        ),
    }


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, default: str | None = None) -> str:
    """The first cell of a row is a name; the default's comes first."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name, *cells in sorted(rows, key=lambda row: row[0] != default):
        marked = f"`{name}` (default)" if name == default else f"`{name}`"
        lines.append(f"| {' | '.join([marked, *cells])} |")
    return "\n".join(lines) + "\n"
