"""Runs every client against one fleet, each in its own environment: what `make test-clients` ends with."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from clients_fleet import ClientsFleet, running_clients_fleet  # noqa: E402 - it imports the packages

MADE = ROOT / ".clients"
TIMEOUT_S = 600.0

# By environment, what runs in it.
FILES: Mapping[str, Sequence[str]] = {
    "sdks": ("test_vendor_sdks.py",),
    "agents": ("test_langchain.py", "test_pydantic_ai.py"),
    "frameworks": ("test_haystack.py", "test_openai_agents.py", "test_smolagents.py"),
    "libraries": ("test_instructor.py", "test_litellm.py", "test_llama_index.py"),
    "llm": ("test_llm.py",),
    "guidellm": ("test_guidellm.py",),
    "aiperf": ("test_aiperf.py",),
}
SCRIPT = "ai_sdk.test.mjs"


def command_of(environment: str, arguments: Sequence[str]) -> list[str] | None:
    """None: it was not made, because what makes it is not on this machine."""
    if environment == "vercel":
        folder = MADE / "vercel"
        if shutil.which("node") is None or not (folder / "node_modules").is_dir():
            return None
        shutil.copy(HERE / "vercel" / SCRIPT, folder / SCRIPT)  # packages are looked for beside the script
        return ["node", "--test", str(folder / SCRIPT)]
    python = Path(sys.executable) if environment == "sdks" else MADE / environment / "bin" / "python"
    files = [str(HERE / file) for file in FILES[environment]]
    return [str(python), "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--tb=short", *files, *arguments]


def outcome_of(environment: str, fleet: ClientsFleet, arguments: Sequence[str]) -> str:
    command = command_of(environment, arguments)
    if command is None:
        return "not run: node and npm are not here"
    told = {
        "MUXFLEET_CLIENTS_URL": fleet.url,
        "MUXFLEET_CLIENTS_KEY": fleet.api_key,
        "MUXFLEET_CLIENTS_CHECKPOINT": fleet.checkpoint,
    }
    started_s = time.monotonic()
    try:
        code = subprocess.run(command, env={**os.environ, **told}, timeout=TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"FAILED: not done in {TIMEOUT_S:.0f} s"
    took = f"in {time.monotonic() - started_s:.0f} s"
    return f"passed {took}" if code == 0 else f"FAILED with exit code {code} {took}"


def main(arguments: Sequence[str]) -> int:
    environments = [*FILES, "vercel"]
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="muxfleet-clients-") as folder:
        print("starting a fleet with trained weights", flush=True)
        with running_clients_fleet(Path(folder)) as fleet:
            for place, environment in enumerate(environments, start=1):
                print(f"[{place}/{len(environments)}] {environment}", flush=True)
                outcomes[environment] = outcome_of(environment, fleet, arguments)
    for environment, outcome in outcomes.items():
        print(f"{environment:10} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
