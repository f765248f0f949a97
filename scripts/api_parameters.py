"""Writes docs/api.md's table of parameters from the request schemas: python -m scripts.api_parameters."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.parameters import UNIMPLEMENTED
from router.openai.peer_parameters import INERT_PEER_PARAMETERS

API_PAGE = Path(__file__).parent.parent / "docs" / "api.md"
_BEGIN, _END = "<!-- parameters: python -m scripts.api_parameters -->\n", "<!-- end of parameters -->\n"
_INERT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "store",
        "user",
        *INERT_PEER_PARAMETERS,
    }
)
_DRAWN = (
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
)
# By parameter: what differs from "yes" on SGLang and on simulated devices.
_SGLANG: Mapping[str, str] = MappingProxyType(
    {"bad_words": "400", "echo": "400 with `logprobs`", "prompt_logprobs": "400"}
)
_SIMULATED: Mapping[str, str] = MappingProxyType(dict.fromkeys(_DRAWN, "no effect") | {"stop_token_ids": "yes"})


def parameter_table() -> str:
    """The table, as Markdown."""
    endpoints = (ChatCompletionRequest.model_fields, CompletionRequest.model_fields)
    lines = ["| Parameter | chat | completions | native | SGLang | simulated |", "|---|---|---|---|---|---|"]
    for name in sorted({*endpoints[0], *endpoints[1]}):
        taken = ["yes" if name in fields else "" for fields in endpoints]
        if name in UNIMPLEMENTED:
            backends = ["400"] * 3
        elif name in _INERT:
            backends = ["no effect"] * 3
        else:
            backends = ["yes", _SGLANG.get(name, "yes"), _SIMULATED.get(name, "yes")]
        lines.append(f"| `{name}` | {' | '.join([*taken, *backends])} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """`page` with the table between its marks."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}{parameter_table()}{_END}{after}"


if __name__ == "__main__":
    API_PAGE.write_text(with_table(API_PAGE.read_text()))
