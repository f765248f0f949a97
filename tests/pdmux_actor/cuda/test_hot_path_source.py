"""Nothing in the code that a launch runs waits for the GPU, but for the places named here."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "pdmux_actor"
HOT = (
    *sorted((ROOT / "executor" / "cuda").glob("*.py")),
    *(ROOT / "executor" / name for name in ("torch_cuda.py", "logits_processing.py", "constrained_rows.py")),
    *(ROOT / "models" / name for name in ("decoder.py", "linear.py", "operators.py", "triton_operators.py")),
)
WAITING = frozenset({"item", "cpu", "tolist", "numpy", "nonzero", "synchronize", "empty_cache", "cuda"})
COPYING = frozenset({"tensor", "as_tensor"})  # torch.tensor(..., device=...) waits for its copy

# (file, function, call) -> why it may.
PLACES: Mapping[tuple[str, str, str], str] = {
    ("cuda_runner.py", "_capture", "synchronize"): "before a capture, once per shape",
    ("host_reads.py", "read_plain", "tolist"): "pinned memory, filled when the launch is over",
    ("graph_capture.py", "__call__", "synchronize"): "a capture, once per shape",
    ("graph_capture.py", "__call__", "empty_cache"): "a capture that found no memory",
    ("device_sampler.py", "host_tokens", "tolist"): "pinned memory, filled when the launch is over",
    ("host_stage.py", "sent", "to"): "from pinned memory, without a wait",
    ("host_stage.py", "send", "numpy"): "the pinned buffer itself",
    ("lane_device.py", "copying", "synchronize"): "weights of a model that goes to sleep or wakes, on their own stream",
    (
        "lane_device.py",
        "give_back",
        "empty_cache",
    ): "when the pool changes its size, or a model that comes finds little memory",
    ("lane_device.py", "settle", "synchronize"): "when a model is attached",
    ("large_kernels.py", "_best_s", "synchronize"): "measures the device, at start and for a profile",
    ("large_kernels.py", "lanes_that_gain", "synchronize"): "measures the device, at start",
    ("cuda_model.py", "of", "tensor"): "when a model is attached",
    ("torch_cuda.py", "_enqueue", "synchronize"): "a launch that failed",
}


def suspects(path: Path) -> Iterator[tuple[str, str, str]]:
    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.FunctionDef):
            if any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
                return  # a kernel
            function = node.name
        elif isinstance(node, ast.Lambda):
            function = "<lambda>"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            arguments = " ".join(ast.unparse(a) for a in [*node.args, *(k.value for k in node.keywords)])
            to_device = name == "to" and "device" in arguments
            from_host = name in COPYING and any(k.arg == "device" for k in node.keywords)
            if name in WAITING or to_device or from_host:
                yield path.name, function, name
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(path.read_text()), "<module>")


def test_hot_path__every_file__waits_in_named_places_only() -> None:
    found = {suspect for path in HOT for suspect in suspects(path)}

    assert found - set(PLACES) == set(), "these wait for the GPU; if they must, name them in PLACES and say why"
    assert set(PLACES) - found == set(), "these places are gone"


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("x = logits.max().item()", "item"),
        ("x = logits.cpu()", "cpu"),
        ("torch.cuda.synchronize()", "synchronize"),
        ("x = ids.to(self._device)", "to"),
        ("x = torch.tensor(ids, device=pool.device)", "tensor"),
    ],
)
def test_suspects__call_that_waits__is_found(line: str, call: str, tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(f"def step(self):\n    {line}\n    y = x.to(torch.int32)\n")

    assert list(suspects(source)) == [("source.py", "step", call)]
