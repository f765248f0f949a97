"""Joins what gateways tell of themselves for consoles, some of which may be of another release."""

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from router.access.key_figures import KeyFigures, keys_report, summed_figures
from router.telemetry.service_report import RequestReceipts, merged_receipts

logger = logging.getLogger(__name__)

PartT = TypeVar("PartT")


def joined_parts(topic: str, answers: Sequence[Any]) -> bytes | None:
    """Returns the topic `requests` or `keys` as JSON. `answers`: of each gateway its part as JSON, or what it failed
    with. What cannot be read is left out, and for `keys` counted; None: nothing can be.
    """
    if topic == "requests":
        receipts = _read(topic, answers, RequestReceipts)
        return msgspec.json.encode(merged_receipts(receipts)) if receipts else None
    figures = _read(topic, answers, tuple[KeyFigures, ...])
    report = keys_report(summed_figures(figures), left_out=len(answers) - len(figures))
    return msgspec.json.encode(report) if figures else None


def _read(topic: str, answers: Sequence[Any], kind: type[PartT]) -> list[PartT]:
    found: list[PartT] = []
    for answer in answers:
        try:
            found.append(msgspec.json.decode(answer, type=kind))
        except (TypeError, msgspec.DecodeError) as error:
            reason = repr(answer if isinstance(answer, Exception) else error)
            logger.info("a gateway's part of a topic is left out", extra={"topic": topic, "reason": reason})
    return found
