"""GuideLLM, from its command line."""

import json
import subprocess
import sys
from pathlib import Path

REQUESTS, OUTPUT_TOKENS = 6, 12


def test_guidellm__run__every_request_succeeds_with_the_tokens_asked_for(
    url, api_key, model, checkpoint, tmp_path
) -> None:
    guidellm = Path(sys.executable).parent / "guidellm"
    report = tmp_path / "report.json"
    command = [
        guidellm, "run",
        "--backend", f"kind=openai_http,target={url},model={model},api_key={api_key}",
        "--profile", "kind=concurrent,streams=2",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=hf_auto,model={checkpoint}",
        "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
        "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    done = subprocess.run([*command, "--disable-console"], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert [len(requests[ending]) for ending in ("successful", "errored")] == [REQUESTS, 0]
    assert {request["output_tokens"] for request in requests["successful"]} == {OUTPUT_TOKENS}
    assert all(request["time_to_first_token_ms"] > 0 for request in requests["successful"])
