"""Compiles modules below the working folder, in a process of its own: mypyc ends the one it runs in when it fails.

Arguments: NAME WORK_FOLDER LIBRARY_FOLDER MODULE.py ...
"""

import sys
from collections.abc import Sequence
from pathlib import Path

# Without contraction a float is rounded as Python rounds it, on every machine.
_FLAGS = ("-ffp-contract=off",)
# Types of some packages are not read: they take gigabytes, and nothing is gained by them.
_TYPES = """[mypy]
follow_imports = silent
ignore_missing_imports = True
explicit_package_bases = True
[mypy-gguf.*,huggingface_hub.*,psutil.*,pyarrow.*,torch.*,transformers.*]
follow_imports = skip
"""


def main(arguments: Sequence[str]) -> None:
    import setuptools  # before mypyc, which asks which of setuptools and distutils is there
    from mypyc.build import mypycify

    name, work, libraries, *modules = arguments
    types = Path(work, "mypy.ini")
    types.write_text(_TYPES, encoding="utf-8")
    extensions = mypycify(
        [f"--config-file={types}", f"--cache-dir={work}/types", *modules],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        target_dir=f"{work}/c",
        group_name=name,
    )
    for extension in extensions:
        extension.extra_compile_args = [*extension.extra_compile_args, *_FLAGS]
    build = ["-q", "build_ext", "--build-lib", libraries, "--build-temp", f"{work}/objects"]
    setuptools.setup(name=name, ext_modules=extensions, script_args=build)


if __name__ == "__main__":
    main(sys.argv[1:])
