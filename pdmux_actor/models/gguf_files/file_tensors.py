"""The tensors of a GGUF file under the names of Hugging Face's layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdmux_actor.models.gguf_files.layout_folder import WEIGHTS_FILE
from pdmux_actor.models.gguf_files.opened_file import GgufFile, open_gguf
from pdmux_actor.models.gguf_files.stored_tensor import GgufTensor
from pdmux_actor.models.gguf_files.tensor_names import TensorSource, tensor_sources
from profiler.families.entry import MixtureTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensors:
    file: GgufFile
    sources: Mapping[str, TensorSource]
    head_dim: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @property
    def num_bytes(self) -> int:
        return sum(place.num_bytes for place in self.file.tensors.values())

    def tensor(self, name: str) -> GgufTensor:
        return GgufTensor.of(self.file, self.sources[name], self.head_dim)


def gguf_tensors(model: str, folder: Path, head_dim: int, mixture: MixtureTraits | None) -> GgufTensors:
    """Opens the file of a folder that `layout_folder` made. Raises ModelLoadError: the file is missing or broken."""
    file = open_gguf(model, (folder / WEIGHTS_FILE).readlink())
    return GgufTensors(file=file, sources=tensor_sources(file, mixture), head_dim=head_dim)
