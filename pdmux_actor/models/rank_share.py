"""Works out what one rank of a tensor-parallel group has of a model."""

from dataclasses import dataclass, replace

from pdmux_actor.models.tensor_reader import TensorPart
from profiler.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Attention heads, the columns of MLPs and of experts, and the vocabulary's rows are divided; a group of more ranks
    than there are KV heads repeats them. Norms, routers and the embedding are on every rank.
    """

    rank: int = 0
    num_ranks: int = 1

    @property
    def leads(self) -> bool:
        """It samples, and adds what is added once: biases and residuals."""
        return self.rank == 0

    @property
    def divided(self) -> TensorPart | None:
        """Its part of a tensor that is cut by rows."""
        return self._part(0, self.rank, self.num_ranks)

    @property
    def columns(self) -> TensorPart | None:
        """Its part of a tensor that is cut by columns."""
        return self._part(1, self.rank, self.num_ranks)

    def kv_heads(self, spec: ModelSpec) -> TensorPart | None:
        """Its part of the K and V projections of the whole model `spec`."""
        count = min(spec.num_kv_heads, self.num_ranks)
        return self._part(0, self.rank * count // self.num_ranks, count)

    def spec_of(self, spec: ModelSpec) -> ModelSpec:
        """Returns the shape of what this rank computes with."""
        if self.num_ranks == 1:
            return spec
        return replace(
            spec,
            num_heads=spec.num_heads // self.num_ranks,
            num_kv_heads=spec.kv_heads_per_gpu(self.num_ranks),
            intermediate_size=spec.intermediate_size // self.num_ranks,
            expert_intermediate_size=spec.expert_intermediate_size // self.num_ranks,
        )

    @staticmethod
    def _part(dim: int, index: int, count: int) -> TensorPart | None:
        return None if count == 1 else TensorPart(dim, index, count)


WHOLE = RankShare()
