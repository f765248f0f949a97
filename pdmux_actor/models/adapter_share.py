"""Cuts what one rank of a tensor-parallel group has of an adapter."""

from pdmux_actor.models.lora_checkpoint import LoraAdapter, LowRankPair
from pdmux_actor.models.rank_share import RankShare
from pdmux_actor.models.tensor_reader import TensorPart
from profiler.adapter_sites import Site
from profiler.specs import ModelSpec

_BY_COLUMNS = (*Site.OUTPUT.value, *Site.DOWN.value)


def share_of(adapter: LoraAdapter, share: RankShare, whole: ModelSpec) -> LoraAdapter:
    """`whole` is the base that the ranks divide. Where they divide rows of a projection, each has its columns of B and
    all of A; where columns, its part of A and all of B: what it adds to its part of the sum.
    """
    if share.num_ranks == 1:
        return adapter
    of_kv = share.kv_heads(whole)

    def cut(name: str, pair: LowRankPair) -> LowRankPair:
        if name in _BY_COLUMNS:
            first, last = _range(pair.a.shape[1], share.columns)
            return LowRankPair(a=pair.a[:, first:last], b=pair.b)
        first, last = _range(pair.b.shape[1], of_kv if name in ("k_proj", "v_proj") else share.divided)
        return LowRankPair(a=pair.a, b=pair.b[:, first:last])

    return LoraAdapter(layers=tuple({name: cut(name, pair) for name, pair in of.items()} for of in adapter.layers))


def _range(size: int, part: TensorPart | None) -> tuple[int, int]:
    if part is None:
        return 0, size
    return part.index * size // part.count, (part.index + 1) * size // part.count
