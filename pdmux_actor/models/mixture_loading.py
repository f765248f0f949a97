"""Reads a layer's mixture of experts from a checkpoint, as the device wants it."""

from collections.abc import Mapping

from torch import Tensor

from pdmux_actor.models.bytes_in_flight import BytesInFlight
from pdmux_actor.models.feed_forward import GatedMlp
from pdmux_actor.models.linear import Linear, MakeProjection
from pdmux_actor.models.mixture import Experts, GroupedExperts, LoopedExperts, Mixture
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.tensor_reader import TensorPart, TensorReader
from profiler.families.entry import MixtureTraits
from profiler.specs import ModelSpec


def load_mixture(
    reader: TensorReader,
    in_flight: BytesInFlight,
    traits: MixtureTraits,
    spec: ModelSpec,
    prefix: str,
    make_projection: MakeProjection,
    share: RankShare = WHOLE,
) -> Mixture:
    """`spec` is that of the rank, which has its `share` of each expert's columns.

    Raises ModelLoadError: a tensor is missing, broken or of another shape than config.json implies.
    """
    inner, hidden = spec.expert_intermediate_size, spec.hidden_size
    names = [f"{prefix}.{traits.experts}.{number}" for number in range(spec.num_experts)]
    product_bytes = inner * hidden * reader.dtype.itemsize

    def bias(parts: Mapping[str, int], part: TensorPart | None = None) -> Tensor | None:
        sizes = {f"{name}.bias": size for name, size in parts.items()}
        return reader.load_stacked(sizes, parts=dict.fromkeys(sizes, part)) if traits.has_biases else None

    def expert(name: str) -> GatedMlp:
        gate_up, down = {f"{name}.{part}": inner for part in (traits.gate, traits.up)}, f"{name}.{traits.down}"
        weights = {f"{part}.weight": size for part, size in gate_up.items()}
        with in_flight.hold(2 * product_bytes):
            product = reader.load_product(weights, hidden, dict.fromkeys(weights, share.divided))
            gate_up_product = make_projection(product, bias(gate_up, share.divided))
        with in_flight.hold(product_bytes):
            product = reader.load_product({f"{down}.weight": hidden}, inner, {f"{down}.weight": share.columns})
            # Products of `down` are summed over ranks: the bias is one rank's.
            down_product = make_projection(product, bias({down: hidden}) if share.leads else None)
        return GatedMlp(gate_up=gate_up_product, down=down_product, clamped=traits.clamped_gate)

    def grouped() -> GroupedExperts:
        assert traits.clamped_gate is None, "loading refuses such experts on GPUs"
        gate_ups = {f"{name}.{part}.weight": inner for name in names for part in (traits.gate, traits.up)}
        downs = {f"{name}.{traits.down}.weight": hidden for name in names}
        gate_up = reader.load_stacked(gate_ups, hidden, parts=dict.fromkeys(gate_ups, share.divided))
        down = reader.load_stacked(downs, inner, parts=dict.fromkeys(downs, share.columns))
        return GroupedExperts(
            gate_up=Linear(gate_up.view(len(names), 2 * inner, hidden)),
            down=Linear(down.view(len(names), hidden, inner)),
        )

    router_name = f"{prefix}.{traits.router}"
    router = Linear(
        reader.load(f"{router_name}.weight", spec.num_experts, hidden), bias({router_name: spec.num_experts})
    )
    experts: Experts = LoopedExperts(mlps=tuple(map(expert, names))) if _is_cpu(router) else grouped()
    return Mixture(
        router=router, experts=experts, experts_per_token=spec.experts_per_token, normalises=traits.normalises
    )


def _is_cpu(router: Linear) -> bool:
    return router.weight.device.type == "cpu"
