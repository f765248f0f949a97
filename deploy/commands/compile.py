"""muxfleet compile"""

import time

from deploy.commands.terminal import terminal
from deploy.compilation.module_compiler import compile_modules


def compile() -> None:
    """Compile what simulations spend their time in, once for a version: MUXFLEET_COMPILED=1 then uses it. It takes a
    few minutes, a C compiler and mypyc (pip install 'muxfleet[compiled]'). Decisions and figures stay the same.

    Example: muxfleet compile
    """
    console = terminal()
    started_s = time.monotonic()
    folder = compile_modules()
    console.print(f"compiled in {time.monotonic() - started_s:.0f} s: {folder}", soft_wrap=True)
    console.print("use it: MUXFLEET_COMPILED=1 muxfleet simulate ...")
