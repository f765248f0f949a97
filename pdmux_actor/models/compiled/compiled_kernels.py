"""All kernels that are compiled for this machine's CPU, as one value to hand on."""

from dataclasses import dataclass
from pathlib import Path

from pdmux_actor.models.compiled.int8_linear import Int8Kernels
from pdmux_actor.models.compiled.kernels import CpuKernels
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernels:
    """`int8` are for products of 8 bits; None: torch's operators do what kernels would."""

    bfloat16: CpuKernels | None = None
    int8: Int8Kernels | None = None

    @classmethod
    def into(cls, folder: Path) -> "CompiledKernels":
        """Compiles into `folder` what is not there yet and suits this CPU."""
        return cls(bfloat16=CpuKernels.compiled_into(folder), int8=Int8Kernels.compiled_into(folder))

    def serving(self, spec: ModelSpec) -> CpuKernels | None:
        """Returns `bfloat16` if they are for such a model."""
        return self.bfloat16 if self.bfloat16 is not None and self.bfloat16.serve(spec) else None

    def attending(self, spec: ModelSpec) -> CpuKernels | None:
        """Returns `bfloat16` if they are for the attention of such a model."""
        return self.bfloat16 if self.bfloat16 is not None and self.bfloat16.attend(spec) else None


BY_TORCH = CompiledKernels()
