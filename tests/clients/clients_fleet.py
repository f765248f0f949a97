"""The fleet that clients meet: trained weights, two gateways (the default), an API key."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.fleet_file.key_file import KeyFile, StoredKey, write_key_file
from deploy.local.demo_weights import demo_weights
from router.access.api_keys import make_key

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from fleet_files import free_port
from fleet_process import FleetProcess

FLEET = """\
name: clients
models:
  - id: smollm2
    source: {checkpoint}
    slo: {{ttft_s: 10.0, tbt_s: 2.0}}
pools:
  - name: laptop
    device: cpu
    kv_memory: 256MiB
gateway:
  port: {port}
  proxy: python
  api_keys: ./keys.yaml
  hold_s: 180
"""


@dataclass(frozen=True, slots=True)
class ClientsFleet:
    url: str
    api_key: str
    checkpoint: str


@contextmanager
def running_fleet(folder: Path) -> Iterator[ClientsFleet]:
    """Raises DemoWeightsUnavailable."""
    checkpoint = demo_weights(lambda num_bytes: None).llama
    key = make_key()
    write_key_file(folder / "keys.yaml", KeyFile(keys=(StoredKey(id=key.key_id, name="clients", hash=key.hash),)))
    file = folder / "clients.yaml"
    file.write_text(FLEET.format(checkpoint=checkpoint, port=free_port()))
    process = FleetProcess(file)
    try:
        process.wait_until_serving()
        yield ClientsFleet(process.url, key.secret, str(checkpoint))
        assert process.stop(signal.SIGINT) == 0
    finally:
        process.kill()
