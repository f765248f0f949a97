"""Makes one exposition of all gateways': behind a proxy a scrape reaches any one of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{)?", re.MULTILINE)
_FAMILY = re.compile(rb"^(?=# HELP )", re.MULTILINE)
_END = b"# EOF\n"  # of OpenMetrics' text


_STALE_S = 5.0  # a gateway that hears from the control loop has a view of the last four seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetrics:
    """Holds what one gateway counted, and how old its view of the fleet is; negative: it has none yet."""

    gateway: str
    text: bytes
    view_age_s: float


def newest_view(own: OwnMetrics, told: Iterable[OwnMetrics]) -> str:
    """Returns the gateway that is to tell of the fleet: the one that was asked, unless it does not hear from the
    control loop and another one does. What units count would else seem to fall.

    >>> deaf, well = (OwnMetrics(gateway=g, text=b"", view_age_s=age) for g, age in (("a", 30.0), ("b", 1.0)))
    >>> newest_view(deaf, [deaf, well]), newest_view(well, [deaf, well])
    ('b', 'b')
    """
    newest = min((each for each in told if each.view_age_s >= 0), key=lambda each: each.view_age_s, default=own)
    is_behind = own.view_age_s < 0 or own.view_age_s > newest.view_age_s + _STALE_S
    return newest.gateway if is_behind else own.gateway


def merged_exposition(by_gateway: Mapping[str, bytes], of_fleet: bytes = b"") -> bytes:
    r"""Prometheus' text format, or OpenMetrics'. Every sample gets the label `gateway`, if it has a name; each family
    stands once, as the formats want. `of_fleet` is what all gateways know alike, and stands as it is.

    >>> merged_exposition({"g1": b"# HELP a x\na 1.0\n", "g2": b'# HELP a x\na{m="q"} 2.0\n'}, b"# HELP b x\nb 3.0\n")
    b'# HELP a x\na{gateway="g1"} 1.0\na{gateway="g2",m="q"} 2.0\n# HELP b x\nb 3.0\n'
    """
    families: dict[bytes, list[bytes]] = {}
    end = _END if any(text.endswith(_END) for text in by_gateway.values()) else b""
    for gateway, text in sorted(by_gateway.items()):
        label = b'gateway="' + gateway.encode() + b'"'
        for family in _FAMILY.split(text.removesuffix(_END)):
            if family:
                header, samples = _divided(family)
                families.setdefault(header, []).append(_with_label(samples, label) if gateway else samples)
    merged = b"".join(header + b"".join(samples) for header, samples in families.items())
    return merged + of_fleet.removesuffix(_END) + end


def _divided(family: bytes) -> tuple[bytes, bytes]:
    """The comment lines at the top, and the samples."""
    lines = family.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
    return b"".join(lines[:count]), b"".join(lines[count:])


def _with_label(samples: bytes, label: bytes) -> bytes:
    def labelled(found: re.Match[bytes]) -> bytes:
        return found[1] + b"{" + label + (b"," if found[2] else b"}")

    return _SAMPLE.sub(labelled, samples)
