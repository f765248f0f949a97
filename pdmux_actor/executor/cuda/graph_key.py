"""Names what is captured, and where."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOGITS = "logits"  # the part of a decode step up to the logits, which all samplings share
LAYERS = "layers"  # of a prompt, each by itself, so that slices of any layers are put together from them

PIECES = "pieces"  # of a fused step's layers, around their attention
OF_TOKENS = frozenset({LAYERS, PIECES})  # whose buckets are tokens, and whose layers are captured one by one

Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKey:
    """`bucket` is sequences of a decode step, and tokens where `part` is one of OF_TOKENS. For decode `part` is LOGITS
    or what comes after them, see device_sampler.SamplingKind. `first_sm` is where the stream's SMs begin: other than 0
    when decode is divided among models.
    """

    model: str
    bucket: int
    sms: int
    part: str
    first_sm: int = 0


@dataclass(frozen=True, slots=True)
class PlannedCapture:
    key: GraphKey
    stream: Any  # of the SMs
