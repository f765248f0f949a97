"""Defines what a gateway allows, and how long it is patient."""

from dataclasses import dataclass

_BEGUN_PATIENCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """`hold_s` is how long a request waits for a unit that serves its model, at first and again after losing one;
    `begun_hold_s` where its answer has begun and its model takes turns with others.

    `max_queued` counts requests of one model that wait for their first token. `max_attempts` bounds the units that one
    request may lose; `max_deaths` those that may die under it before they gave it a token: a request that kills engines
    stops early. One that it lost is avoided for `avoid_s`: it may be the only one. A client that does not send its body
    within `body_timeout_s`, or reads nothing of a stream for `write_timeout_s`, is let go. Streams are told every
    `tell_wait_s` how far the model is that they wait for. The streams of a unit that says nothing for `suspect_s` go on
    elsewhere where they can; after `lost_s` it is lost. `template_timeout_s` is how long a chat template may take;
    `max_waiting_characters` how much text may wait to be turned into tokens.
    """

    max_body_bytes: int = 16 * 1024 * 1024
    max_queued: int = 1024
    hold_s: float = 30.0
    max_attempts: int = 3
    max_deaths: int = 2
    avoid_s: float = 2.0
    stale_after_s: float = 5.0
    keep_alive_s: float = 15.0
    tell_wait_s: float = 1.0
    max_choices: int = 128
    max_header_bytes: int = 32 * 1024
    max_prompt_tokens: int = 1 << 20
    body_timeout_s: float = 60.0
    write_timeout_s: float = 120.0
    template_timeout_s: float = 2.0
    tokenizer_load_timeout_s: float = 600.0
    max_waiting_characters: int = 64 * 1024 * 1024
    suspect_s: float = 3.0
    lost_s: float = 10.0

    @property
    def begun_hold_s(self) -> float:
        """Returns how long an answer waits to go on: a refusal would throw away what there is of it."""
        return _BEGUN_PATIENCE * self.hold_s
