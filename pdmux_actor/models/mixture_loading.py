"""Reads a layer's mixture of experts from a checkpoint, as the device wants it."""

from pdmux_actor.models.bytes_in_flight import BytesInFlight
from pdmux_actor.models.feed_forward import GatedMlp
from pdmux_actor.models.linear import Linear, MakeProjection
from pdmux_actor.models.mixture import Experts, GroupedExperts, LoopedExperts, Mixture
from pdmux_actor.models.rank_share import WHOLE, RankShare
from pdmux_actor.models.tensor_reader import TensorReader
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

    def expert(name: str) -> GatedMlp:
        gate_up = {f"{name}.{traits.gate}.weight": inner, f"{name}.{traits.up}.weight": inner}
        down_name = f"{name}.{traits.down}.weight"
        with in_flight.hold(2 * product_bytes):
            stacked = make_projection(reader.load_product(gate_up, hidden, dict.fromkeys(gate_up, share.divided)), None)
        with in_flight.hold(product_bytes):
            down = make_projection(reader.load_product({down_name: hidden}, inner, {down_name: share.columns}), None)
        return GatedMlp(gate_up=stacked, down=down)

    def grouped() -> GroupedExperts:
        gate_ups = {f"{name}.{part}.weight": inner for name in names for part in (traits.gate, traits.up)}
        downs = {f"{name}.{traits.down}.weight": hidden for name in names}
        gate_up = reader.load_stacked(gate_ups, hidden, parts=dict.fromkeys(gate_ups, share.divided))
        down = reader.load_stacked(downs, inner, parts=dict.fromkeys(downs, share.columns))
        return GroupedExperts(
            gate_up=Linear(gate_up.view(len(names), 2 * inner, hidden)),
            down=Linear(down.view(len(names), hidden, inner)),
        )

    router = Linear(reader.load(f"{prefix}.{traits.router}.weight", spec.num_experts, hidden))
    experts: Experts = LoopedExperts(mlps=tuple(map(expert, names))) if _is_cpu(router) else grouped()
    return Mixture(
        router=router, experts=experts, experts_per_token=spec.experts_per_token, normalises=traits.normalises
    )


def _is_cpu(router: Linear) -> bool:
    return router.weight.device.type == "cpu"
