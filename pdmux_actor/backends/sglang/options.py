"""Defines what a fleet may say about an SGLang engine, and what of it cannot be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from pdmux_actor.scheduling.policies.registry import POLICIES
from profiler.specs import DeviceSpec

SGLANG_MEMORY_SHARE = 0.85  # of a GPU, for weights and KV; the rest is for activations and decode graphs

Scalar = str | int | float | bool

# Of SGLang 0.5.23: the models whose classes define `forward_split_prefill`. The engine asks the class itself.
SPLIT_PREFILL_ARCHITECTURES = frozenset(
    {
        "ApertusForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "QWenLMHeadModel",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)

QUANTISED_SGLANG = (
    "SGLang quantises by its own argument: remove it, and set pools[].sglang.args: {torchao_config: int8wo}"
)

# Policies that ask for fused steps: SGLang's multiplexing loop runs prefill and decode in launches of their own.
FUSING_POLICIES = frozenset(name for name, policy in POLICIES.items() if policy.fuses)

# Server arguments that muxfleet sets, and where a fleet file says them instead.
OWN_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "model_path": "set models[].source",
        "tokenizer_path": "set models[].source",
        "revision": "set models[].revision",
        "dtype": "set models[].dtype or engine.dtype",
        "context_length": "set models[].max_model_len",
        "device": "set pools[].device",
        "tp_size": "set pools[].mesh_gpus",
        "max_total_tokens": "set pools[].kv_memory",
        "max_running_requests": "set engine.max_running_sequences",
        "max_prefill_tokens": "set engine.max_batch_tokens",
        "enable_pdmux": "set pools[].sglang.multiplexing",
        "pdmux_config_path": "set pools[].sglang.decode_sms",
        "sm_group_num": "set pools[].sglang.decode_sms",
        "enable_memory_saver": "set pools[].sglang.sleep",
        "enable_weights_cpu_backup": "set pools[].sglang.sleep",
        "stream_interval": "every token is handed over when it is there; remove it",
        "incremental_streaming_output": "always on; remove it",
        "skip_tokenizer_init": "always off; remove it",
        "pp_size": "a unit is one tensor-parallel group; remove it",
        "dp_size": "use several units (pools[].nodes, pools[].gpus_per_node); remove it",
        "disaggregation_mode": "prefill and decode share the unit; remove it",
    }
)

# Values of other arguments that SGLang's multiplexing does not bear.
_AGAINST_MULTIPLEXING: Mapping[str, frozenset[Scalar]] = MappingProxyType(
    {"chunked_prefill_size": frozenset({-1}), "disable_overlap_schedule": frozenset({True})}
)
_NEVER_WITH_MULTIPLEXING = ("speculative_algorithm", "enable_dp_attention", "enable_mixed_chunk")

_TURN_OFF = "SGLang cannot multiplex with it; remove it or set sglang.multiplexing: off"

_MIN_SIDE_SMS = 16  # of a GPU: what upstream leaves a lane at least
_DEFAULT_PARTITIONS = 6


class SglangOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`multiplexing` "auto" is on for CUDA and a model that SGLang can slice. `decode_sms` are the decode shares of the
    partitions to be created at start; None chooses them. `args` are further arguments of SGLang's server. `sleep`: an
    engine whose model leaves keeps its process, and its weights in host memory, for the model's return.
    """

    multiplexing: Literal["auto", "on", "off"] = "auto"
    decode_sms: tuple[int, ...] | None = None
    args: dict[str, Scalar] = {}
    sleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """`field` is relative to the options: "decode_sms", "args.dp_size"."""

    field: str
    value: object
    remedy: str


def option_problems(options: SglangOptions, device: DeviceSpec | None, policy: str) -> Iterator[OptionProblem]:
    """Returns what the engine would fail on, or would silently do otherwise. `device` None: not known before the
    start.
    """
    for name, value in options.args.items():
        if name in OWN_ARGUMENTS:
            yield OptionProblem(field=f"args.{name}", value=value, remedy=OWN_ARGUMENTS[name])
    if options.multiplexing == "off":
        if options.decode_sms is not None:
            remedy = "there are no partitions with multiplexing off; remove it"
            yield OptionProblem(field="decode_sms", value=list(options.decode_sms), remedy=remedy)
        return
    for name, allowed in _AGAINST_MULTIPLEXING.items():
        if name in options.args and options.args[name] not in allowed:
            yield OptionProblem(field=f"args.{name}", value=options.args[name], remedy=_TURN_OFF)
    for name in _NEVER_WITH_MULTIPLEXING:
        if options.args.get(name):
            yield OptionProblem(field=f"args.{name}", value=options.args[name], remedy=_TURN_OFF)
    if policy in FUSING_POLICIES:
        remedy = (
            f"policy {policy} fuses prompts into decode steps, SGLang's multiplexing cannot; use mux or muxwise, or "
        )
        yield OptionProblem(field="multiplexing", value=options.multiplexing, remedy=remedy + "multiplexing: off")
    if options.decode_sms is not None:
        yield from _share_problems(options.decode_sms, device)


def _share_problems(decode_sms: Sequence[int], device: DeviceSpec | None) -> Iterator[OptionProblem]:
    def problem(remedy: str) -> OptionProblem:
        return OptionProblem(field="decode_sms", value=list(decode_sms), remedy=remedy)

    if not decode_sms:
        yield problem("name at least one decode share, or remove it")
    elif list(decode_sms) != sorted(set(decode_sms)):
        yield problem("must ascend without repetition")
    elif device is not None:
        step = prefill_step_sms(device)
        for share in decode_sms:
            prefill = device.num_sms - share
            if share < 1 or prefill < 1 or prefill % step:
                legal = ", ".join(str(s) for s in reversed(_legal_shares(device)))
                yield problem(f"{share} is no decode share of {device.name}: choose from {legal}")


def prefill_step_sms(device: DeviceSpec) -> int:
    """Prefill's side of a green context comes in whole multiples of this; decode takes the remainder."""
    return device.partition_granularity_sms


def partitions_of(options: SglangOptions, device: DeviceSpec) -> tuple[tuple[int, int], ...]:
    """(prefill, decode) SMs by ascending decode share, from a small share for decode to most of the device.

    >>> from profiler.gpus.h200 import DEVICE as H200
    >>> partitions_of(SglangOptions(), H200)
    ((112, 20), (96, 36), (72, 60), (56, 76), (32, 100), (16, 116))
    """
    shares = options.decode_sms
    if shares is None:
        legal = sorted(s for s in _legal_shares(device))
        count = min(_DEFAULT_PARTITIONS, len(legal))
        picks = {round(i * (len(legal) - 1) / max(1, count - 1)) for i in range(count)}
        shares = tuple(legal[i] for i in sorted(picks))
    return tuple((device.num_sms - share, share) for share in shares)


def _legal_shares(device: DeviceSpec) -> tuple[int, ...]:
    """Decode shares, descending."""
    step = prefill_step_sms(device)
    least = min(_MIN_SIDE_SMS, device.num_sms // 2)
    return tuple(device.num_sms - p for p in range(step, device.num_sms, step) if p >= least <= device.num_sms - p)
