"""What reading weights takes of memory, tells on its way, and says of files that are not what they should be."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.checkpoint import read_json
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.projection_reader import BytesInFlight
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.weights import load_weights

SMALL = CheckpointShape(
    model_type="llama", num_layers=3, hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8
)
LARGE = CheckpointShape(
    model_type="llama", num_layers=4, hidden_size=512, intermediate_size=2048, num_heads=8, num_kv_heads=8, head_dim=64
)
GATE_UP_BYTES = 2 * 2048 * 512 * 4

# Peak beyond what was there before. A fixed threshold: else malloc keeps freed blocks of up to 32 MB for later.
MEASURED = """
import sys, torch
from pathlib import Path
from pdmux_actor.models.checkpoint import read_json
from pdmux_actor.models.config import DecoderConfig
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.weights import load_weights

def kilobytes(key):
    return next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))

folder = Path(sys.argv[1])
config = DecoderConfig.from_config("m", read_json("m", folder, "config.json"), None)
Linear(torch.zeros(64, 64))(torch.zeros(1, 64))
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
before = kilobytes("VmRSS")
weights = load_weights("m", folder, config, num_threads=int(sys.argv[2]))
print((kilobytes("VmHWM") - before) * 1024 - config.spec.weight_bytes)
"""


def write_sharded(folder: Path, shape: CheckpointShape, shards: int) -> None:
    write_random_checkpoint(folder, shape, seed=0)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-{place % shards}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in weight_map if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def config_of(folder: Path) -> DecoderConfig:
    return DecoderConfig.from_config("m", read_json("m", folder, "config.json"), None)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    write_sharded(folder, LARGE, shards=3)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("num_threads", [1, 4])
def test_load_weights__any_threads__peak_is_the_weights_and_one_product(large: Path, num_threads: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, str(large), str(num_threads)],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "500000", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    beside_bytes = int(ran.stdout)
    threads_bytes = num_threads * 4 * 2**20  # a thread, with torch's own
    # The product in its plain layout, and of each of its two tensors as it is read.
    assert beside_bytes <= 2 * GATE_UP_BYTES + threads_bytes, f"{beside_bytes / 2**20:.1f} MiB beside the weights"


def test_load_weights__several_threads__same_weights_and_every_byte_told(tmp_path: Path) -> None:
    write_sharded(tmp_path, SMALL, shards=2)
    told: list[tuple[int, int]] = []

    alone = load_weights("m", tmp_path, config_of(tmp_path))
    together = load_weights(
        "m", tmp_path, config_of(tmp_path), num_threads=4, on_progress=lambda done, total: told.append((done, total))
    )

    for one, other in zip(alone.layers, together.layers, strict=True):
        inputs = torch.randn(3, SMALL.hidden_size)
        assert torch.equal(one.qkv(inputs), other.qkv(inputs))
        assert torch.equal(one.input_norm, other.input_norm)
    done = [done for done, _ in told]
    assert done == sorted(done)
    stored = sum(t.nbytes for path in tmp_path.glob("*.safetensors") for t in load_file(path).values())
    assert done[-1] == stored
    assert {total for _, total in told} == {sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))}


def test_load_weights__truncated_shard__is_named_with_its_first_tensor_that_is_cut_off(tmp_path: Path) -> None:
    write_sharded(tmp_path, SMALL, shards=2)
    path = tmp_path / "model-1.safetensors"
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_bytes])
    by_end = sorted((t["data_offsets"][1], name) for name, t in header.items() if name != "__metadata__")
    kept_bytes, _ = by_end[2]
    path.write_bytes(path.read_bytes()[: 8 + header_bytes + kept_bytes + 1])

    with pytest.raises(ModelLoadError, match=rf"model-1\.safetensors .* tensor {by_end[3][1]} is not whole"):
        load_weights("m", tmp_path, config_of(tmp_path))


def test_load_weights__shard_of_another_model__names_file_and_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path, SMALL, shards=2)
    path = tmp_path / "model-0.safetensors"
    tensors = load_file(path)
    name = min(name for name, tensor in tensors.items() if tensor.ndim == 2)
    save_file({**tensors, name: torch.zeros(7, 5)}, path)

    with pytest.raises(ModelLoadError, match=rf"model-0\.safetensors: tensor {name} has shape \[7, 5\]"):
        load_weights("m", tmp_path, config_of(tmp_path), num_threads=2)


def test_load_weights__shard_shrinks_while_it_is_read__names_file_and_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path, SMALL, shards=1)
    path = tmp_path / "model-0.safetensors"

    def cut(done_bytes: int, total_bytes: int) -> None:
        os.truncate(path, 4096)

    with pytest.raises(ModelLoadError, match=r"model-0\.safetensors .*tensor model\.\S+ is not whole"):
        load_weights("m", tmp_path, config_of(tmp_path), on_progress=cut)


def test_bytes_in_flight__one_larger_than_the_limit__waits_until_it_is_alone() -> None:
    in_flight, entered = BytesInFlight(10), threading.Event()

    def enter() -> None:
        with in_flight.hold(100):
            entered.set()

    with in_flight.hold(4), in_flight.hold(6):
        other = threading.Thread(target=enter, daemon=True)
        other.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    other.join(10)
