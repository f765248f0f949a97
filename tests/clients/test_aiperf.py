"""AIPerf, from its command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REQUESTS, OUTPUT_TOKENS = 6, 12


@pytest.mark.parametrize("endpoint_type", ["chat", "completions", "responses"])
def test_aiperf__profile__every_request_succeeds_with_the_tokens_asked_for(
    url, api_key, model, checkpoint, tmp_path, endpoint_type
) -> None:
    aiperf = Path(sys.executable).parent / "aiperf"
    forced = {"ignore_eos": True} if endpoint_type != "responses" else {}
    command = [
        aiperf, "profile",
        "--model", model,
        "--url", url,
        "--api-key", api_key,
        "--endpoint-type", endpoint_type,
        "--streaming",
        "--tokenizer", checkpoint,
        "--use-server-token-count",
        "--concurrency", "2",
        "--request-count", str(REQUESTS),
        "--synthetic-input-tokens-mean", "32",
        "--output-tokens-mean", str(OUTPUT_TOKENS),
        "--output-artifact-dir", tmp_path,
    ]  # fmt: skip
    extra = ["--extra-inputs", json.dumps(forced), "--ui", "none"]
    done = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == REQUESTS
    assert report["error_request_count"]["avg"] == 0 if report.get("error_request_count") else True
    assert report["time_to_first_token"]["avg"] > 0
    if forced:
        assert report["output_sequence_length"]["min"] == report["output_sequence_length"]["max"] == OUTPUT_TOKENS
