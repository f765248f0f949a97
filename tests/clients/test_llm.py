"""llm, from its command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LLM = Path(sys.executable).parent / "llm"
QUESTION = "What is the capital of France?"
MODELS = """
- model_id: mux
  model_name: {model}
  api_base: {base_url}
  api_key_name: mux
  supports_schema: true
  supports_tools: true
- model_id: completed
  model_name: {model}
  api_base: {base_url}
  api_key_name: mux
  completion: true
"""


@pytest.fixture
def llm(base_url, api_key, model, tmp_path):
    """`llm(...)` runs it, and returns what it writes to standard output and error."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(model=model, base_url=base_url))

    def run(*arguments: str) -> tuple[str, str]:
        told = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        done = subprocess.run([LLM, *arguments], env=told, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    run("keys", "set", "mux", "--value", api_key)
    return run


@pytest.mark.parametrize("streams", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_llm__question__is_answered_with_usage_and_gone_on_with(llm, streams) -> None:
    answer, usage = llm("-m", "mux", *streams, "-o", "temperature", "0", "--usage", QUESTION)
    again, _ = llm("--continue", "-o", "temperature", "0", "-o", "max_tokens", "24", "And the capital of Spain?")

    assert "Paris" in answer
    assert re.search(r"Token usage: \d+ input, \d+ output", usage)
    assert again.strip()


@pytest.mark.parametrize("streams", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_llm__schema__is_kept(llm, streams) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    answer, _ = llm("-m", "mux", *streams, "--schema", json.dumps(schema), "-o", "max_tokens", "64", QUESTION)

    assert json.loads(answer).keys() == {"city"}


def test_llm__completion__goes_on_with_the_text(llm) -> None:
    answer, _ = llm("-m", "completed", "-o", "temperature", "0", "-o", "max_tokens", "5", "The capital of France is")

    assert "Paris" in answer
