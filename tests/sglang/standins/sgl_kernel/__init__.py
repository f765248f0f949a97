"""Stands in for SGLang's kernels on a machine without a GPU: SGLang imports names of them, and calls one of them there.

`spatial` divides a GPU that is not there; its streams do everything at once.
"""

import sys

import torch

from sgl_kernel import hashing, spatial

OPERATORS = hashing.declare()

if not torch.cuda.is_available():
    torch.cuda.Stream = spatial.Stream
    torch.cuda.Event = spatial.Event
    torch.cuda.current_device = lambda: 0


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return kernel


sys.modules.setdefault("sgl_kernel.spatial", spatial)
