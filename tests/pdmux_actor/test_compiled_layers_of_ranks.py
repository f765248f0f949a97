"""Compiled layers sum nothing over ranks: a unit of several ranks runs its layers part by part."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from cpu_rig import CpuRig, cores_of_this_process, make_device, make_prompt
from torch import Tensor

from pdmux_actor.executor.ranks.leading_runner import LeadingRunner
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.models.compiled.panel_linear import PanelKernels
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.models.rank_share import RankShare

SHAPE = CheckpointShape(
    model_type="llama", num_layers=3, hidden_size=64, intermediate_size=128, num_heads=4, num_kv_heads=2, head_dim=32
)


class CountingGroup:
    """The lane's group, without the other rank."""

    leads = True

    def __init__(self) -> None:
        self.sums = 0

    def sum(self, tensor: Tensor) -> Tensor:
        self.sums += 1
        return tensor

    def from_leader(self, tensor: Tensor) -> Tensor:
        return tensor

    def to_leader(self, tensor: Tensor) -> list[Tensor]:
        return [tensor, tensor]


def test_decode__on_ranks_whose_products_are_compiled__is_summed_over_them(
    panel_kernels: PanelKernels, tmp_path: Path
) -> None:
    write_random_checkpoint(tmp_path, SHAPE, seed=1)
    group, cores = CountingGroup(), cores_of_this_process()[:1]
    executor = TorchCpuExecutor(
        kv_pool_bytes=32 << 20,
        block_bytes=4096,
        cores=cores,
        device=make_device(1),
        share=RankShare(rank=0, num_ranks=2),
        make_runner=lambda number, models: LeadingRunner(
            number, models, group=group, link=SimpleNamespace(tell=lambda frame: None), cores=cores
        ),
    )
    executor._kernels = replace(executor._kernels, panels=panel_kernels)
    rig = CpuRig(executor=executor)
    rig.load("m", tmp_path, dtype="bfloat16")
    sequences = [rig.sequence("m", make_prompt(9), 4)]
    rig.prefill(sequences)

    group.sums = 0
    rig.decode(sequences, 1)
    executor.close()

    assert group.sums == 2 * SHAPE.num_layers
