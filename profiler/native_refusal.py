"""Tells which models muxfleet's own engine does not run: loading refuses them, and plans do not count on them."""

from dataclasses import dataclass
from typing import Literal

from profiler.families.entry import ModelFamily
from profiler.families.registry import family_of
from profiler.specs import ModelSpec

NativeDevice = Literal["cpu", "cuda"]
"""What that engine computes on."""

CHANGES_SCORES = "it caps the scores of attention, or has sinks"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRefusal:
    reason: str
    remedy: str


def native_refusal(
    spec: ModelSpec, on: NativeDevice, num_ranks: int = 1, *, by_transformers: bool = False
) -> NativeRefusal | None:
    """`num_ranks` devices compute one model together. `by_transformers`: its layers run by transformers' code although
    there may be a fast decoder. None: such a unit runs it, within the window of its attention.
    """
    family = family_of(spec.architecture)
    is_fast = family.traits is not None and not by_transformers
    refused = _of_fast_decoder(spec, family, on) if is_fast else _of_transformers(spec, family, on)
    if refused is not None or num_ranks == 1:
        return refused
    if not is_fast:
        return NativeRefusal(
            reason=f"{spec.architecture} runs by transformers' code, which is not divided among ranks",
            remedy="place it on a pool with mesh_gpus: 1, or with backend: sglang",
        )
    return _of_ranks(spec, num_ranks)


def without_kernels(architecture: str, what: str, remedy: str) -> NativeRefusal:
    """Makes the refusal of a GPU, whose kernels lack `what`."""
    return NativeRefusal(
        reason=f"{architecture} is not served on a GPU: {what}",
        remedy=f"{remedy}, or serve it in an SGLang pool (backend: sglang)",
    )


def _of_fast_decoder(spec: ModelSpec, family: ModelFamily, on: NativeDevice) -> NativeRefusal | None:
    if on == "cuda" and not family.native_on_gpus:
        what = "no kernels here have its attention and experts"
        return without_kernels(spec.architecture, what, "serve it in a pool of CPUs")
    if on == "cuda" and spec.is_moe and spec.weights is not None:
        reason = f"weights={spec.weights} of a mixture of experts is for CPUs"
        return NativeRefusal(reason=reason, remedy="remove `weights`, or serve it in an SGLang pool")
    return None


def _of_transformers(spec: ModelSpec, family: ModelFamily, on: NativeDevice) -> NativeRefusal | None:
    if family.refusal is not None:
        return NativeRefusal(
            reason=f"config.json: architectures={spec.architecture!r} is not served by this engine: {family.refusal}",
            remedy="an SGLang pool (backend: sglang) may serve it: docs/models.md",
        )
    if spec.weights is not None and not family.is_rounded_by_transformers:
        return NativeRefusal(
            reason=f"weights={spec.weights} cannot be had of {spec.architecture}, which runs by transformers' code: "
            "its products are not all torch.nn.Linear",
            remedy="set `weights: dtype`, or serve it in a pool with `backend: sglang`, if SGLang has it",
        )
    if on == "cuda" and family.changes_scores:
        return without_kernels(spec.architecture, CHANGES_SCORES, "serve it in a pool of CPUs")
    return None


def _of_ranks(spec: ModelSpec, num_ranks: int) -> NativeRefusal | None:
    kv_heads = spec.num_kv_heads
    left_over = {
        ("num_attention_heads", spec.num_heads): spec.num_heads % num_ranks,
        ("num_key_value_heads", kv_heads): kv_heads % num_ranks and num_ranks % kv_heads,
        ("intermediate_size", spec.intermediate_size): spec.intermediate_size % num_ranks,
        ("vocab_size", spec.vocab_size): spec.vocab_size % num_ranks,
        ("moe_intermediate_size", spec.expert_intermediate_size): spec.expert_intermediate_size % num_ranks,
    }
    for (field, value), is_left_over in left_over.items():
        if is_left_over:
            return NativeRefusal(
                reason=f"config.json: {field}={value} cannot be divided among {num_ranks} ranks",
                remedy="place it on a pool with another mesh_gpus, or with backend: sglang",
            )
    return None
