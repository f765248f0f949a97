"""How each system serves a checkpoint: its command and what it wants of its environment, as its own guide has it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer_systems.checkpoints import gguf_of
from peer_systems.environments import Environment

MAX_MODEL_LEN = 4608
KV_GIB = 2
_SEQUENCES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One process to start; `models` are names that clients call, `cores` what it may use. `folder`: where it runs."""

    command: Sequence[str]
    port: int
    models: Sequence[str]
    cores: Sequence[int]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process writes, the port that it takes, and the targets that it is judged by."""

    folder: Path
    port: int
    ttft_s: float
    tbt_s: float


def muxfleet(
    _: Environment | None, checkpoint: Path, models: Sequence[str], cores: Sequence[int], place: Place
) -> Serving:
    """One fleet of one CPU unit, whatever the number of models."""
    lines = ["name: peers", "models:"]
    for model in models:
        lines += [
            f"  - id: {model}",
            f"    source: {checkpoint}",
            "    dtype: bfloat16",
            f"    max_model_len: {MAX_MODEL_LEN}",
            f"    slo: {{ttft_s: {place.ttft_s}, tbt_s: {place.tbt_s:.4f}}}",
            "    demand: {rate_per_s: 0.5, prompt_tokens: 256, output_tokens: 64}",
        ]
    lines += ["pools:", "  - name: cpu", "    device: cpu", f"    kv_memory: {KV_GIB}GiB"]
    lines += ["engine:", "  policy: mux", "gateway:", f"  port: {place.port}", ""]
    file = place.folder / "fleet.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    program = str(Path(sys.executable).parent / "muxfleet")
    return Serving(command=(program, "up", str(file)), port=place.port, models=models, cores=cores, folder=place.folder)


def vllm(
    environment: Environment, checkpoint: Path, models: Sequence[str], cores: Sequence[int], place: Place
) -> Serving:
    """Compiled and with tcmalloc and OpenMP preloaded, which are its defaults."""
    (model,) = models
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [environment.program("vllm"), "serve", str(checkpoint), "--served-model-name", model]
    command += ["--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--host", "127.0.0.1", "--port", str(place.port)]
    return Serving(
        command=command, port=place.port, models=models, cores=cores, environment=settings, folder=place.folder
    )


def llama_cpp(
    environment: Environment, checkpoint: Path, models: Sequence[str], cores: Sequence[int], place: Place
) -> Serving:
    """Its own server, with as many slots as the largest batch, which share one KV cache."""
    (model,) = models
    threads = str(len(cores))
    command = [
        str(environment.folder / "build" / "bin" / "llama-server"),
        "--model",
        str(gguf_of(checkpoint, environment.folder)),
    ]
    command += ["--alias", model, "--host", "127.0.0.1", "--port", str(place.port), "--threads", threads]
    command += ["--threads-batch", threads, "--parallel", str(_SEQUENCES), "--kv-unified", "--no-webui"]
    command += ["--ctx-size", str(_SEQUENCES * 1024), "--cache-type-k", "bf16", "--cache-type-v", "bf16"]
    return Serving(command=command, port=place.port, models=models, cores=cores, folder=place.folder)


Serve = Callable[[Environment, Path, Sequence[str], Sequence[int], Place], Serving]
SYSTEMS: Mapping[str, Serve] = {"muxfleet": muxfleet, "vllm": vllm, "llama_cpp": llama_cpp}
SERVES_SEVERAL_MODELS = frozenset({"muxfleet"})
