"""Runs a program of ours with what is compiled in place of its Python. Arguments: PROGRAM ARGUMENT ..."""

import runpy
import sys

from deploy.compilation.compiled_modules import prefer_compiled_modules


def main() -> None:
    program = sys.argv.pop(1)
    prefer_compiled_modules()
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
