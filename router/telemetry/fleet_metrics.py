"""One exposition for all gateways: behind a proxy a scrape reaches any one of them."""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{)?", re.MULTILINE)
_FAMILY = re.compile(rb"^(?=# HELP )", re.MULTILINE)
_END = b"# EOF\n"  # of OpenMetrics' text


def merged_exposition(by_gateway: Mapping[str, bytes]) -> bytes:
    r"""Prometheus' text format, or OpenMetrics'. Every sample gets the label `gateway`; each family stands once, as the
    formats want.

    >>> merged_exposition({"g1": b"# HELP a x\na 1.0\n", "g2": b'# HELP a x\na{m="q"} 2.0\n'})
    b'# HELP a x\na{gateway="g1"} 1.0\na{gateway="g2",m="q"} 2.0\n'
    """
    families: dict[bytes, list[bytes]] = {}
    end = _END if any(text.endswith(_END) for text in by_gateway.values()) else b""
    for gateway, text in sorted(by_gateway.items()):
        label = b'gateway="' + gateway.encode() + b'"'
        for family in _FAMILY.split(text.removesuffix(_END)):
            if family:
                header, samples = _divided(family)
                families.setdefault(header, []).append(_with_label(samples, label))
    return b"".join(header + b"".join(samples) for header, samples in families.items()) + end


def _divided(family: bytes) -> tuple[bytes, bytes]:
    """The comment lines at the top, and the samples."""
    lines = family.splitlines(keepends=True)
    count = next((i for i, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
    return b"".join(lines[:count]), b"".join(lines[count:])


def _with_label(samples: bytes, label: bytes) -> bytes:
    def labelled(found: re.Match[bytes]) -> bytes:
        return found[1] + b"{" + label + (b"," if found[2] else b"}")

    return _SAMPLE.sub(labelled, samples)
