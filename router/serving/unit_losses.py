"""Counts what a request has lost, to know when it is given up: at the gateway, and in the simulator."""

from dataclasses import dataclass

from router.limits import GatewayLimits


@dataclass(slots=True)
class UnitLosses:
    """`attempts` are units that were lost under a request, `deaths` those of the last of them that died before they
    gave it a token.
    """

    attempts: int = 0
    deaths: int = 0

    def count(self, *, is_lost: bool, has_died: bool, was_served: bool) -> None:
        """Counts a unit that is left. What it gives back was not lost: a long answer of a model that takes turns is,
        again and again. Where the unit had served the request, others are as likely the cause of its death.
        """
        self.attempts += is_lost
        self.deaths = 0 if was_served else self.deaths + has_died

    def may_go_on(self, limits: GatewayLimits) -> bool:
        return self.attempts < limits.max_attempts and self.deaths < limits.max_deaths
