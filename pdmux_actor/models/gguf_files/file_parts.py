"""Names the files of a GGUF checkpoint that llama.cpp has split into several."""

import re
from pathlib import Path

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def parts_of(file: Path) -> tuple[Path, ...]:
    """Returns all of them, the first one first, of whichever; a file that is not named so is the only one."""
    found = _PART.fullmatch(file.name)
    if found is None:
        return (file,)
    stem, count = found["stem"], int(found["count"])
    return tuple(file.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))
