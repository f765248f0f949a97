"""Runs lm-eval, unmodified, in its own environment and without a network."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from capitals_task import write_tasks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("MUXFLEET_LM_EVAL", ROOT / ".venv-lm-eval" / "bin" / "lm_eval"))
LM_EVAL_TIMEOUT_S = 280.0


async def evaluate(
    task: str, api: str, url: str, folder: Path, *arguments: str, **model_arguments: object
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics of the task, and its samples in the order of the documents."""
    write_tasks(folder)
    told = {"model": "demo/bytes", "base_url": url, "num_concurrent": 4, "max_retries": 1, **model_arguments}
    command = ["--model", api, "--model_args", ",".join(f"{name}={value}" for name, value in told.items())]
    command += ["--tasks", task, "--include_path", str(folder), "--output_path", str(folder), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *command,
        *arguments,
        env={**os.environ, **offline},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LM_EVAL_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()[-3000:]
    return written(folder, task)


def written(folder: Path, task: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"][task], sorted(rows, key=lambda row: row["doc_id"])
