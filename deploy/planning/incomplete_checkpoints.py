"""Finds local checkpoints that are not whole: a plan counts on their models, and units will fail to load them."""

from collections.abc import Iterator
from pathlib import Path

from deploy.fleet_file.settings import FleetFile
from pdmux_actor.errors import ModelLoadError
from pdmux_actor.models.shard_files import check_shards, shard_files


def incomplete_checkpoints(fleet: FleetFile) -> dict[str, str]:
    """Returns by model what is wrong with its weights, and the remedy. Reads the head of each file.

    A folder without any weights is one to plan with before they are there; simulated units read none.
    """
    if all(pool.device == "simulated" for pool in fleet.pools):
        return {}
    return dict(_found(fleet))


def _found(fleet: FleetFile) -> Iterator[tuple[str, str]]:
    for model in fleet.models:
        folder = Path(model.source)
        if model.base is not None or not folder.is_absolute() or not _has_weights(model.id, folder):
            continue
        try:
            check_shards(model.id, folder)
        except ModelLoadError as error:
            yield model.id, f"{error.reason}; {error.remedy}"


def _has_weights(model: str, folder: Path) -> bool:
    try:
        return any(path.exists() for path in shard_files(model, folder))
    except ModelLoadError:
        return False
