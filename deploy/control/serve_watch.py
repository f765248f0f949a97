"""Notices when Serve has said nothing for long: what is lost then is not replaced, though requests go on."""

from dataclasses import dataclass

SILENT_S = 30.0
"""Longer than Serve's controller takes to start again with a head that is back at once."""


@dataclass(slots=True)
class ServeWatch:
    """Both methods return what is to be told, once for each silence."""

    _silent_since_s: float | None = None
    _is_told: bool = False

    def is_silent(self, now_s: float, why: str) -> str | None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if self._is_told or now_s - self._silent_since_s < SILENT_S:
            return None
        self._is_told = True
        return (
            f"Serve's controller has said nothing for {now_s - self._silent_since_s:.0f} s ({why}): "
            "requests go on, but units and gateways that are lost are not replaced"
        )

    def answers(self, now_s: float) -> str | None:
        since_s, was_told = self._silent_since_s, self._is_told
        self._silent_since_s, self._is_told = None, False
        if since_s is None or not was_told:
            return None
        return f"Serve's controller answers again, after {now_s - since_s:.0f} s"
