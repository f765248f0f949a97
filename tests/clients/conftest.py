"""Unmodified clients against a running fleet that serves trained weights.

`make test-clients` starts one fleet and runs these files in the environments of their clients (against_one_fleet.py).
`make test` has the SDKs of OpenAI and Anthropic, and starts a fleet for them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODEL = "smollm2"

# By file, what it needs: it is collected where that is installed.
NEEDED = {
    "test_aiperf.py": "aiperf",
    "test_guidellm.py": "guidellm",
    "test_haystack.py": "haystack",
    "test_instructor.py": "instructor",
    "test_langchain.py": "langchain_openai",
    "test_litellm.py": "litellm",
    "test_llama_index.py": "llama_index",
    "test_llm.py": "llm",
    "test_openai_agents.py": "agents",
    "test_pydantic_ai.py": "pydantic_ai",
    "test_smolagents.py": "smolagents",
    "test_vendor_sdks.py": "anthropic",
    "clients_fleet.py": "muxfleet",
    "against_one_fleet.py": "muxfleet",
}

collect_ignore = [file for file, package in NEEDED.items() if find_spec(package) is None]


def pytest_itemcollected(item: pytest.Item) -> None:
    for name in ("clients", "ray", "weights"):
        item.add_marker(name)
    item.add_marker(pytest.mark.timeout(600))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the fleet listens, a key of it, and the folder of the model's checkpoint, which has the tokenizer."""

    url: str
    api_key: str
    checkpoint: str


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    if url := os.environ.get("MUXFLEET_CLIENTS_URL"):
        yield Endpoint(url, os.environ["MUXFLEET_CLIENTS_KEY"], os.environ["MUXFLEET_CLIENTS_CHECKPOINT"])
        return
    from clients_fleet import running_clients_fleet

    from deploy.errors import DemoWeightsUnavailable

    try:
        with running_clients_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
            yield Endpoint(fleet.url, fleet.api_key, fleet.checkpoint)
    except DemoWeightsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def url(endpoint: Endpoint) -> str:
    return endpoint.url


@pytest.fixture
def base_url(endpoint: Endpoint) -> str:
    return f"{endpoint.url}/v1"


@pytest.fixture
def api_key(endpoint: Endpoint) -> str:
    return endpoint.api_key


@pytest.fixture
def checkpoint(endpoint: Endpoint) -> str:
    return endpoint.checkpoint


@pytest.fixture
def model() -> str:
    return MODEL
