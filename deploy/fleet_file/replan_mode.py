"""Defines when demand moves models, for who works by it and reads no fleet file; `ControlRules` says what they mean."""

from typing import Literal

Replan = Literal["auto", "shadow", "off", "scratch"]
