"""Decides which flash kernel torch computes prefill attention with: FlashAttention 3 or 4 where installed, else torch's
own.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_LOG = logging.getLogger(__name__)

BUILT_IN = "torch's own flash kernel (FlashAttention 2)"
# By the major version of the compute capability. On Hopper FlashAttention 2 reaches half of what 3 does.
_BEST: Mapping[int, str] = MappingProxyType({9: "FA3", 10: "FA4"})
_NEEDED: Mapping[str, str] = MappingProxyType({"FA3": "flash_attn_interface", "FA4": "flash_attn.cute"})


def activate_flash_attention(attention: Any, capability: tuple[int, int]) -> str:
    """`attention` is torch.nn.attention, or whatever answers like it. From now on torch's operator runs what is named
    in the answer.
    """
    best = _BEST.get(capability[0])
    if best is None or not hasattr(attention, "activate_flash_attention_impl"):  # torch 2.11 has it
        return BUILT_IN
    try:
        attention.activate_flash_attention_impl(best)
    except (ImportError, RuntimeError, ValueError) as missing:
        _LOG.info("prefill runs %s; the package %s would be faster: %s", BUILT_IN, _NEEDED[best], missing)
        return BUILT_IN
    return best
