"""The profile of what floors.py measured: a file that a pool of a fleet can name."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.measurement import Measurement
from profiler.partition_rates import PartitionRate, with_rates
from profiler.probe import LaunchShape
from profiler.profile import ModelProfile, Profile
from profiler.specs import DeviceSpec, ModelSpec

Row = Mapping[str, Any]


def measurements(rows: Sequence[Row], *, whole_sms: int, beside_tokens: int) -> Iterator[Measurement]:
    """Of steps that are one launch of sequences alike, greedy: `beside_tokens` were prefilled on the remaining SMs."""
    for row in rows:
        sms, batch, tokens = row["sms"], row["batch"], row["tokens"]
        beside = None
        if row["measured"] == "prefill":
            launch = LaunchShape(sms=sms, prompts=batch, new_tokens=tokens)
        elif row["measured"] in ("decode", "beside"):
            launch = LaunchShape(sms=sms, sequences=batch, depth=tokens)
            if row["measured"] == "beside":
                beside = LaunchShape(sms=whole_sms - sms, prompts=1, new_tokens=beside_tokens)
        else:
            continue
        yield Measurement(
            launch=launch, beside=beside, seconds=row["low_s"], high_s=row["high_s"], repeats=row["repeats"]
        )


def write_floor_profile(
    path: Path,
    rows: Sequence[Row],
    *,
    model: str,
    spec: ModelSpec,
    device: DeviceSpec,
    rates: Sequence[PartitionRate],
    beside_tokens: int,
) -> None:
    """Raises OSError; ImportError where there is no pyarrow."""
    from profiler.profile_file import write_profile

    measured = tuple(measurements(rows, whole_sms=device.num_sms, beside_tokens=beside_tokens))
    is_whole_known = any(rate.sms == device.num_sms for rate in rates)
    profile = Profile(
        engine="native",
        device=with_rates(device, rates) if is_whole_known else device,
        num_gpus=1,
        machine={"gpu": device.name, "source": "benchmarks/gpu/floors.py, random weights"},
        models={model: ModelProfile(spec=spec, measurements=measured)},
        partition_rates=tuple(rates),
    )
    write_profile(profile, path)
