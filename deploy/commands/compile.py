"""muxfleet compile"""

import time
from typing import Annotated

import typer

from deploy.commands.terminal import terminal
from deploy.compilation.module_compiler import compile_modules, remove_compiled


def compile(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what was compiled, of any version, and compile nothing.")
    ] = False,
) -> None:
    """Compile what simulations and engines on cores spend their time in, once for a version: simulate and compare then
    use it, and with MUXFLEET_COMPILED=1 engines do. It takes a few minutes, a C compiler and mypyc (pip install
    'muxfleet[compiled]'). Decisions and figures stay the same.

    Example: muxfleet compile
    """
    console = terminal()
    if clean:
        console.print(f"removed {remove_compiled() / 2**20:.0f} MiB")
        return
    started_s = time.monotonic()
    folder = compile_modules()
    console.print(f"compiled in {time.monotonic() - started_s:.0f} s: {folder}", soft_wrap=True)
    console.print("muxfleet simulate and compare use it from now on, other commands with MUXFLEET_COMPILED=1")
