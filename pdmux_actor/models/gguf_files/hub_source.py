"""Reads which GGUF file of Hugging Face a source means."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pdmux_actor.models.gguf_files.file_parts import parts_of
from pdmux_actor.models.gguf_files.layout_folder import is_gguf

_REPOSITORY = r"(?P<repository>[^/:~.][^/:]*/[^/:]+)"
_OF_TYPE = re.compile(_REPOSITORY + r":(?P<wanted>[\w.-]+)")
_BY_NAME = re.compile(_REPOSITORY + r"/(?P<wanted>[^:]+\.gguf)")
_PROJECTOR = "mmproj"  # of images, beside the model


@dataclass(frozen=True, slots=True, kw_only=True)
class HubGguf:
    """`wanted` is the path of a file in the repository, or the type that its name ends with, such as Q4_K_M."""

    repository: str
    wanted: str

    @classmethod
    def of(cls, source: str) -> "HubGguf | None":
        """Reads `org/name:Q4_K_M` and `org/name/file.gguf`; None: it is neither.

        >>> HubGguf.of("org/name-GGUF:Q4_K_M")
        HubGguf(repository='org/name-GGUF', wanted='Q4_K_M')
        >>> HubGguf.of("org/name-GGUF/q8/tiny.gguf")
        HubGguf(repository='org/name-GGUF', wanted='q8/tiny.gguf')
        >>> HubGguf.of("org/name"), HubGguf.of("./models/org/tiny.gguf")
        (None, None)
        """
        found = _OF_TYPE.fullmatch(source) or _BY_NAME.fullmatch(source)
        return None if found is None else cls(repository=found["repository"], wanted=found["wanted"])

    def __str__(self) -> str:
        return f"{self.repository}{'/' if is_gguf(self.wanted) else ':'}{self.wanted}"

    def meant(self, names: Iterable[str]) -> list[str]:
        """Returns which of a repository's files these are. A checkpoint in several files is one: its first."""
        if is_gguf(self.wanted):
            return [str(parts_of(Path(self.wanted))[0])] if self.wanted in set(names) else []
        ending = re.compile(rf"(.*[-._])?{re.escape(self.wanted)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE)
        files = [PurePosixPath(name) for name in names]
        meant = [file for file in files if ending.fullmatch(file.name) and not file.name.startswith(_PROJECTOR)]
        return sorted({str(parts_of(Path(file))[0]) for file in meant})


def is_nowhere(source: str) -> bool:
    """Returns whether it is the name of a GGUF file that is neither on this machine nor on Hugging Face."""
    local = Path(source)
    return is_gguf(source) and not local.is_absolute() and not local.is_file() and HubGguf.of(source) is None


NOWHERE = "there is no such file; write org/name/NAME.gguf for one of Hugging Face"
