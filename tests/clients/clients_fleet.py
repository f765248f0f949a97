"""The fleet that clients meet: trained weights, two gateways (the default), an API key."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.fleet_file.key_file import KeyFile, StoredKey, write_key_file
from deploy.local.demo_weights import demo_weights
from router.access.api_keys import make_key

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from fleet_files import trained_fleet_file
from fleet_process import running_fleet


@dataclass(frozen=True, slots=True)
class ClientsFleet:
    url: str
    api_key: str
    checkpoint: str


@contextmanager
def running_clients_fleet(folder: Path) -> Iterator[ClientsFleet]:
    """Raises DemoWeightsUnavailable."""
    checkpoint = demo_weights(lambda num_bytes: None).llama
    key = make_key()
    write_key_file(folder / "keys.yaml", KeyFile(keys=(StoredKey(id=key.key_id, name="clients", hash=key.hash),)))
    file = trained_fleet_file(folder, checkpoint, gateway={"api_keys": "./keys.yaml", "hold_s": 180})
    with running_fleet(file) as process:
        yield ClientsFleet(process.url, key.secret, str(checkpoint))
