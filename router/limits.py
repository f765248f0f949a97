"""What a gateway allows, and how long it is patient."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """`hold_s` is how long a request waits for a unit that serves its model, at first and again after losing one.

    `max_queued` counts requests of one model that wait for their first token. `max_attempts` bounds the units that one
    request may lose, so a request that kills engines stops early.
    """

    max_body_bytes: int = 16 * 1024 * 1024
    max_queued: int = 1024
    hold_s: float = 30.0
    max_attempts: int = 3
    stale_after_s: float = 5.0
    keep_alive_s: float = 15.0
    max_choices: int = 128
    max_tokenizers: int = 64
