"""OpenAI's SDK before a served gateway, whose model has a tokenizer of the test's."""

from pathlib import Path

import openai
from served_gateway import ServedGateway


def sdk_of(served: ServedGateway, tokenizer_folder: Path) -> openai.AsyncOpenAI:
    """`unit` of it is the first one. Whoever asked for it closes it."""
    served.folder = tokenizer_folder
    served.show(*served.units)
    sdk = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
    sdk.unit = served.units[0]
    return sdk
