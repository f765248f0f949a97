"""A fleet of one GGUF model on this machine's cores, for who names a model where a fleet file is asked for."""

import json
import re
from pathlib import Path, PurePosixPath

from pdmux_actor.models.gguf_files.hub_source import HubGguf
from pdmux_actor.models.gguf_files.layout_folder import is_gguf

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")


def fleet_of_model(source: str) -> str | None:
    """Returns the text of its fleet file; None: the source is neither a GGUF file nor Hugging Face's name of one.

    >>> fleet_of_model("org/Llama-3-GGUF:Q4_K_M")
    '{"models": [{"id": "Llama-3-GGUF", "source": "org/Llama-3-GGUF:Q4_K_M"}]}'
    >>> fleet_of_model("fleet.yaml")
    """
    hub = HubGguf.of(source)
    if hub is None and not is_gguf(source):
        return None
    is_typed = hub is not None and not is_gguf(source)
    name = PurePosixPath(hub.repository).name if hub is not None and is_typed else Path(source).stem
    model = {"id": _NOT_IN_IDS.sub("-", name).strip("-._") or "model", "source": source}
    return json.dumps({"models": [model]})
