"""Reads a layer's mixture of experts from a checkpoint, as the device wants it."""

from pdmux_actor.models.feed_forward import GatedMlp
from pdmux_actor.models.linear import Linear
from pdmux_actor.models.mixture import Experts, GroupedExperts, LoopedExperts, Mixture
from pdmux_actor.models.projection_reader import ProjectionReader
from profiler.families.entry import MixtureTraits
from profiler.specs import ModelSpec


def load_mixture(projections: ProjectionReader, traits: MixtureTraits, spec: ModelSpec, prefix: str) -> Mixture:
    """`spec` is that of the rank, which has its share of each expert's columns.

    Raises ModelLoadError: a tensor is missing, broken or of another shape than config.json implies.
    """
    reader, share = projections.tensors, projections.share
    inner, hidden, has_bias = spec.expert_intermediate_size, spec.hidden_size, traits.has_biases
    names = [f"{prefix}.{traits.experts}.{number}" for number in range(spec.num_experts)]

    def expert(name: str) -> GatedMlp:
        gate_up = {f"{name}.{part}": (inner, share.divided) for part in (traits.gate, traits.up)}
        return GatedMlp(
            gate_up=projections.by_rows(gate_up, hidden, has_bias=has_bias),
            down=projections.by_columns(f"{name}.{traits.down}", hidden, inner, has_bias=has_bias),
            clamped=traits.clamped_gate,
        )

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
    router_bias = projections.bias({router_name: (spec.num_experts, None)}) if has_bias else None
    router = Linear(reader.load(f"{router_name}.weight", spec.num_experts, hidden), router_bias)
    experts: Experts = LoopedExperts(mlps=tuple(map(expert, names))) if _is_cpu(router) else grouped()
    return Mixture(
        router=router, experts=experts, experts_per_token=spec.experts_per_token, normalises=traits.normalises
    )


def _is_cpu(router: Linear) -> bool:
    return router.weight.device.type == "cpu"
