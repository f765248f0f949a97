"""Whether demand moves models, as a fleet file says it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

Replan = Literal["auto", "shadow", "off", "scratch"]
WrittenReplan = Annotated[Replan, BeforeValidator(lambda value: "off" if value is False else value)]
"""YAML makes false of a bare off."""
