"""FlashAttention 3 and 4 are chosen where they are installed, by torch's own registry."""

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn import attention

from pdmux_actor.executor.cuda.flash_attention import BUILT_IN, activate_flash_attention


class Registry:
    """Answers like torch.nn.attention."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.activated: list[str] = []
        self.fails = fails

    def activate_flash_attention_impl(self, name: str) -> None:
        self.activated.append(name)
        if self.fails is not None:
            raise self.fails


@pytest.mark.parametrize(
    ("capability", "chosen"), [((9, 0), "FA3"), ((10, 0), "FA4"), ((8, 0), BUILT_IN), ((12, 0), BUILT_IN)]
)
def test_activate__everything_installed__takes_the_best_of_the_architecture(
    capability: tuple[int, int], chosen: str
) -> None:
    registry = Registry()

    assert activate_flash_attention(registry, capability) == chosen
    assert registry.activated == ([] if chosen == BUILT_IN else [chosen])


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'flash_attn_interface'"),
        RuntimeError("Module 'flash_attn_interface' does not expose FA3 kernels"),
        ValueError("Unknown flash attention impl 'FA3'"),
    ],
)
def test_activate__package_missing_or_broken__stays_with_torchs_own_and_says_so(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    assert activate_flash_attention(Registry(error), (9, 0)) == BUILT_IN
    assert str(error) in caplog.text


def test_activate__torch_before_the_registry__stays_with_torchs_own() -> None:
    assert activate_flash_attention(SimpleNamespace(), (9, 0)) == BUILT_IN


def test_activate__this_torch_without_the_package__stays_with_torchs_own() -> None:
    if "flash_attn_interface" in sys.modules:
        pytest.skip("FlashAttention 3 is installed here")

    assert activate_flash_attention(attention, (9, 0)) == BUILT_IN


@pytest.fixture
def flash_attn_3(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.library.Library]:
    """What importing FlashAttention 3 leaves behind: a module, and operators forward and backward."""
    library = torch.library.Library("flash_attn_3", "DEF")  # goes with the test
    library.define("fwd(Tensor q) -> Tensor")
    library.define("bwd(Tensor q) -> Tensor")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", ModuleType("flash_attn_interface"))
    yield library
    attention.restore_flash_attention_impl()
    library._destroy()


def test_activate__this_torch_with_the_package__is_in_torchs_registry(flash_attn_3: torch.library.Library) -> None:
    assert activate_flash_attention(attention, (9, 0)) == "FA3"
    assert attention.current_flash_attention_impl() == "FA3"


def test_flash_operator__of_both_implementations__takes_what_prefill_gives_it() -> None:
    from torch.nn.attention import _fa3, _fa4

    query = torch.empty(3, 4, 64)
    given = (query, query, query, torch.empty(2), torch.empty(2), 3, 3, 0.0, True, False)

    inspect.signature(_fa3._fa3_flash_attention_forward_impl_default).bind(*given)
    inspect.signature(_fa4._fa4_flash_attention_forward_impl).bind(*given)
    names = [argument.name for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments]
    assert names[: len(given)] == [
        "query",
        "key",
        "value",
        "cum_seq_q",
        "cum_seq_k",
        "max_q",
        "max_k",
        "dropout_p",
        "is_causal",
        "return_debug_mask",
    ]
