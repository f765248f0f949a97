"""Python runs this at its start. torchvision's default build is for CUDA; without CUDA its import fails on operators
that its C++ part would declare.
"""

import importlib.abc
import sys


class DeclareOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules["torchvision_operators"] = self  # whom nothing refers to any more, its library ends with
        return None


sys.meta_path.insert(0, DeclareOperators())
