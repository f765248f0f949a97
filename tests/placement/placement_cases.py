"""Models and units for placement tests, drawn by hypothesis or made with defaults."""

from collections.abc import Mapping

from hypothesis import strategies as st

from placement.demand import ModelDemand
from placement.estimation.memory import bytes_for_models, kv_rows, resident_bytes_on, runs_on
from placement.plan import Plan, UnitCapacity
from placement.problem import PlacementModel
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.gpus.l40s import DEVICE as L40S
from profiler.native_refusal import NativeDevice
from profiler.specs import DeviceSpec, ModelSpec
from traces.timeliness import SloTarget

BLOCK_BYTES = 16 * 1024
MIB = 1024**2


def make_spec(
    *,
    num_layers: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    hidden_size: int = 256,
    dtype: str = "bfloat16",
    architecture: str = "LlamaForCausalLM",
) -> ModelSpec:
    return ModelSpec(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_heads=2 * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=1024,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype=dtype,
    )


def make_model(
    name: str = "m",
    *,
    spec: ModelSpec | None = None,
    rate_per_s: float = 1.0,
    min_replicas: int = 1,
    max_replicas: int | None = None,
    max_model_len: int = 2048,
    tokens: float = 320,
    slo: SloTarget | None = None,
) -> PlacementModel:
    demand = ModelDemand(model=name, rate_per_s=rate_per_s, prompt_tokens=tokens * 0.75, output_tokens=tokens * 0.25)
    return PlacementModel(
        model=name,
        spec=spec or make_spec(),
        demand=demand,
        min_replicas=min_replicas,
        max_replicas=max_replicas or max(1, min_replicas),
        max_model_len=max_model_len,
        slo=slo,
    )


def make_unit(
    unit_id: str = "u",
    *,
    memory_mib: int = 256,
    total_blocks: int = 4096,
    num_gpus: int = 1,
    device: DeviceSpec | None = None,
    max_models: int | None = None,
    asleep: Mapping[str, float] | None = None,
    sizes_pool: bool = False,
    native_on: NativeDevice | None = None,
) -> UnitCapacity:
    return UnitCapacity(
        unit_id=unit_id,
        num_gpus=num_gpus,
        memory_bytes=memory_mib * MIB,
        block_bytes=BLOCK_BYTES,
        total_blocks=memory_mib * MIB // BLOCK_BYTES if sizes_pool else total_blocks,
        sizes_pool=sizes_pool,
        device=device,
        max_models=max_models,
        asleep=asleep or {},
        native_on=native_on,
    )


specs = st.builds(
    make_spec,
    num_layers=st.integers(1, 12),
    num_kv_heads=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 128]),
    hidden_size=st.sampled_from([128, 512, 1024]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    architecture=st.sampled_from(["LlamaForCausalLM", "LlamaForCausalLM", "Gemma2ForCausalLM"]),
)


@st.composite
def model_lists(draw: st.DrawFn) -> list[PlacementModel]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    models = []
    for name in names:
        min_replicas = draw(st.integers(0, 2))
        models.append(
            make_model(
                name,
                spec=draw(specs),
                rate_per_s=draw(st.floats(0, 50)),
                min_replicas=min_replicas,
                max_replicas=draw(st.integers(max(1, min_replicas), 3)),
                max_model_len=draw(st.integers(1, 4096)),
                tokens=draw(st.floats(1, 3000)),
                slo=draw(
                    st.sampled_from([None, SloTarget(ttft_s=1.0, tbt_s=0.05), SloTarget(ttft_s=1e-6, tbt_s=1e-6)])
                ),
            )
        )
    return models


@st.composite
def unit_lists(draw: st.DrawFn) -> list[UnitCapacity]:
    names = draw(st.lists(st.sampled_from(["u0", "u1", "u2", "u3"]), unique=True, max_size=4))
    return [
        make_unit(
            name,
            memory_mib=draw(st.integers(1, 400)),
            total_blocks=draw(st.integers(0, 12000)),
            num_gpus=draw(st.sampled_from([1, 1, 2, 4])),
            device=draw(st.sampled_from([None, A100_80G, L40S])),
            max_models=draw(st.sampled_from([None, None, 1])),
            asleep=draw(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.1, 0.5, 2.0]), max_size=4)),
            sizes_pool=draw(st.sampled_from([False, False, True])),
            native_on=draw(st.sampled_from([None, "cpu", "cuda"])),
        )
        for name in names
    ]


def assert_sound(plan: Plan, units: list[UnitCapacity], models: list[PlacementModel]) -> None:
    by_name = {m.model: m for m in models}
    assert sorted(u.unit_id for u in plan.units) == sorted(u.unit_id for u in units)
    for unit in units:
        held = plan.models_of(unit.unit_id)
        assert len({p.model for p in held}) == len(held) <= (unit.max_models or len(held))
        assert all(p.quota_blocks > 0 for p in held)
        assert sum(p.quota_blocks for p in held) <= unit.total_blocks
        assert all(runs_on(by_name[p.model].spec, unit.num_gpus, unit.native_on) for p in held)
        needed_bytes = sum(resident_bytes_on(unit, by_name[p.model]) for p in held)
        assert needed_bytes <= max(0, bytes_for_models(unit))
        if unit.sizes_pool:
            assert needed_bytes + sum(p.quota_blocks for p in held) * unit.block_bytes <= unit.memory_bytes
        for placement in held:
            model = by_name[placement.model]
            mean = min(model.max_model_len, int(model.demand.tokens_per_request))
            rows = kv_rows(model.spec, unit.block_bytes, unit.num_gpus)
            assert rows is not None
            assert placement.quota_blocks >= rows.blocks_for(mean)
    for model in models:
        replicas = len(plan.units_of(model.model))
        assert replicas <= model.max_replicas
        assert (model.model in plan.unplaced) == (replicas < model.min_replicas)
    assert all("; " in reason for reason in plan.unplaced.values()), "a reason comes with a remedy"
