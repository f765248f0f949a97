"""Length distributions with published figures."""

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

_Z99 = 2.3263478740408408  # the standard normal's 99th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """A log-normal with the given median and 99th percentile, clamped to [min, max]."""

    min_tokens: int
    p50_tokens: int
    p99_tokens: int
    max_tokens: int

    @property
    def sigma(self) -> float:
        """
        >>> round(LengthDistribution(min_tokens=1, p50_tokens=100, p99_tokens=1000, max_tokens=4000).sigma, 4)
        0.9898
        """
        return math.log(self.p99_tokens / self.p50_tokens) / _Z99

    def sample(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        drawn = rng.lognormal(math.log(self.p50_tokens), self.sigma, size=count)
        return np.clip(np.rint(drawn), self.min_tokens, self.max_tokens).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthProfile:
    """Input and output lengths, drawn independently of each other."""

    name: str
    input: LengthDistribution
    output: LengthDistribution
    source: str


def _profile(
    name: str, source: str, inputs: tuple[int, int, int, int], outputs: tuple[int, int, int, int]
) -> LengthProfile:
    def distribution(figures: tuple[int, int, int, int]) -> LengthDistribution:
        low, p50, p99, high = figures
        return LengthDistribution(min_tokens=low, p50_tokens=p50, p99_tokens=p99, max_tokens=high)

    return LengthProfile(name=name, input=distribution(inputs), output=distribution(outputs), source=source)


# min, p50, p99, max of the whole public files. A log-normal meets the two quantiles exactly; the mean of what it draws
# is then within 30 % of the file's own (Azure conversation outputs are the worst: 160 against 211).
PROFILES = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _profile(
                "azure_conv",
                "Azure LLM inference trace 2023, conversations (Patel et al., Splitwise, ISCA'24), 19,366 requests",
                (2, 1_020, 4_142, 14_050),
                (7, 129, 601, 1_000),
            ),
            _profile(
                "azure_code",
                "Azure LLM inference trace 2023, code (Patel et al., Splitwise, ISCA'24), 8,819 requests",
                (3, 1_469, 7_436, 7_437),
                (6, 13, 251, 1_899),
            ),
            _profile(
                "mooncake_conversation",
                "Mooncake conversation trace (Qin et al., FAST'25), 12,031 requests",
                (891, 6_909, 85_400, 126_195),
                (1, 350, 1_118, 2_000),
            ),
            _profile(
                "sharegpt",
                "ShareGPT with history up to 8k tokens (as filtered by Sarathi-Serve, OSDI'24), 30,731 requests",
                (1, 1_730, 7_434, 8_141),
                (2, 415, 998, 1_024),
            ),
            _profile(
                "lmsys_chat",
                "LMSYS-Chat-1M lengths (as published with APEX+), 1,024 requests",
                (2, 17, 586, 1_037),
                (1, 117, 533, 761),
            ),
        )
    }
)
