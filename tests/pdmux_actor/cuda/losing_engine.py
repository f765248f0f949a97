"""An engine process on the CPU rig whose device is lost with a launch and stays so, as after an illegal access:

python losing_engine.py LAUNCHES FD SETTINGS_JSON
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

import torch
from cuda_rig import Done, NoStream, make_cuda_rig
from patched_language import patched_language

from pdmux_actor.executor.torch_cuda import TorchCudaExecutor
from pdmux_actor.serving import process


class LosingDevice:
    def __init__(self, num_launches: int) -> None:
        self._launches_left = num_launches

    def record(self, stream: NoStream) -> Done:
        self._launches_left -= 1
        return self

    def query(self) -> bool:
        self.check()
        return True

    def check(self) -> None:
        if self._launches_left < 0:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def executor_on(device: LosingDevice) -> TorchCudaExecutor:
    executor = make_cuda_rig().executor
    executor._lanes.record = device.record
    executor._lanes.settle = device.check
    return executor


if __name__ == "__main__":
    device = LosingDevice(int(sys.argv[1]))
    process.build_executor = lambda settings, known: executor_on(device)
    with patched_language():
        process.main(sys.argv[2:])
