"""Nobody waits for the whole device while an engine serves: CUDA forbids it beside a capture, on whatever thread, and
the capture is lost, too.
"""

import ast
from pathlib import Path

import pdmux_actor

PACKAGE = Path(pdmux_actor.__file__).parent
AT_START = {"executor/cuda/large_kernels.py"}  # before there is anything to capture


def waits_for_the_device(source: str) -> bool:
    if "cuda.synchronize" not in source:  # few sources do: the others are not parsed
        return False
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(ast.unparse(called).endswith("cuda.synchronize") for called in calls)


def test_sources__of_the_engine__wait_for_streams_and_never_for_the_device() -> None:
    own = [path for path in PACKAGE.rglob("*.py") if "sglang" not in path.parts]

    waiting = {str(path.relative_to(PACKAGE)) for path in own if waits_for_the_device(path.read_text())}

    assert waiting == AT_START
