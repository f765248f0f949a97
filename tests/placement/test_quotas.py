from collections.abc import Mapping

from hypothesis import assume, given
from hypothesis import strategies as st
from placement_cases import BLOCK_BYTES, make_model, make_spec, model_lists

from pdmux_actor.kv.geometry import KvGeometry
from placement.estimation.memory import kv_rows
from placement.estimation.quotas import QuotaClaim, QuotaShortage, initial_quotas
from placement.problem import PlacementModel


def blocks(model: PlacementModel, tokens: int) -> int:
    rows = kv_rows(model.spec, BLOCK_BYTES)
    return 0 if rows is None else rows.blocks_for(tokens)


def claim(model: PlacementModel) -> QuotaClaim:
    return QuotaClaim.of(model, BLOCK_BYTES)


def quotas_of(models: list[PlacementModel], total_blocks: int) -> Mapping[str, int] | QuotaShortage:
    return initial_quotas([claim(m) for m in models], total_blocks=total_blocks)


@given(model_lists(), st.integers(0, 20000))
def test_quotas__any_models__share_the_whole_pool_and_keep_least_floors(
    models: list[PlacementModel], total_blocks: int
) -> None:
    assume(models)
    quotas = quotas_of(models, total_blocks)
    least = {m.model: blocks(m, claim(m).least_tokens) for m in models}

    if isinstance(quotas, QuotaShortage):
        assert sum(least.values()) > total_blocks
        assert quotas.missing_blocks == sum(least.values()) - total_blocks
    else:
        assert sum(quotas.values()) == total_blocks
        assert all(quotas[m.model] >= least[m.model] for m in models)


@given(model_lists())
def test_quotas__pool_of_all_full_floors__gives_each_a_whole_sequence(models: list[PlacementModel]) -> None:
    assume(models)
    full = {m.model: blocks(m, max(m.max_model_len, claim(m).least_tokens)) for m in models}

    assert quotas_of(models, sum(full.values())) == full


@given(model_lists(), st.integers(0, 20000), st.randoms())
def test_quotas__order_of_claims__does_not_matter(
    models: list[PlacementModel], total_blocks: int, random: object
) -> None:
    shuffled = list(models)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis types it as object

    assert quotas_of(models, total_blocks) == quotas_of(shuffled, total_blocks)


def test_quotas__equal_lengths__follow_rate_times_heads_times_layers() -> None:
    """MuxServe's rule: blocks_i = rate_i x heads_i x layers_i / sum x total."""
    small = make_model("small", spec=make_spec(num_layers=2, num_kv_heads=1), rate_per_s=8, max_model_len=16)
    large = make_model("large", spec=make_spec(num_layers=8, num_kv_heads=4), rate_per_s=1, max_model_len=16)

    assert quotas_of([small, large], 300) == {"small": 100, "large": 200}


def test_quotas__pool_below_full_floors__limits_all_to_one_common_length() -> None:
    spec = make_spec(num_layers=1, num_kv_heads=1, head_dim=64)  # 64 tokens a block
    long = make_model("long", spec=spec, max_model_len=64 * 100, tokens=64, rate_per_s=0)
    short = make_model("short", spec=spec, max_model_len=64 * 4, tokens=64, rate_per_s=10)

    assert quotas_of([long, short], 50) == {"long": 46, "short": 4}


def test_quotas__nobody_asks__share_equally() -> None:
    models = [make_model(name, rate_per_s=0, max_model_len=64) for name in "abc"]

    assert quotas_of(models, 1000) == {"a": 334, "b": 333, "c": 333}


def test_quotas__pool_too_small__says_how_much_is_missing() -> None:
    model = make_model(spec=make_spec(num_layers=4, num_kv_heads=2), tokens=320)  # 5 rows of 8 blocks

    shortage = quotas_of([model], 30)

    assert isinstance(shortage, QuotaShortage)
    assert shortage.missing_blocks == 10


def test_quotas__head_larger_than_a_block__is_a_shortage_no_pool_heals() -> None:
    wide = make_model(spec=make_spec(head_dim=128, dtype="float32"))

    shortage = initial_quotas([QuotaClaim.of(wide, 1000)], total_blocks=10**6)

    assert isinstance(shortage, QuotaShortage)
    assert shortage.missing_blocks is None


@given(st.integers(1, 12), st.integers(1, 8), st.sampled_from([32, 64, 80, 128]), st.integers(1, 5000))
def test_kv_rows__any_shape__agrees_with_the_engine(
    num_layers: int, num_kv_heads: int, head_dim: int, tokens: int
) -> None:
    spec = make_spec(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim)
    geometry = KvGeometry.of(spec, BLOCK_BYTES)

    needed = -(-tokens // geometry.tokens_per_row)
    rows = kv_rows(spec, BLOCK_BYTES)

    assert rows is not None
    assert rows.blocks_for(tokens) == needed * geometry.blocks_per_row
