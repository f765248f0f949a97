"""MuxServe's spatial baseline: the groups that its release and its Fig. 7 have."""

from llama_fleets import ESTIMATOR, LLAMA_7B, LLAMA_13B, LLAMA_30B, LLAMA_65B, nodes, power_law

from placement.solvers.spatial_groups import SpatialGroupsSolver


def test_spatial_groups__llamas_of_the_paper__have_the_groups_of_its_release() -> None:
    """fp16 weights on GPUs of 80 GiB: 13B fills 26 of 86 GB, 30 %; 30B fills 65 GB, 38 % of two and 19 % of four; 65B
    131 GB, 38 % of four and 19 % of eight. 12 x 1 + 4 x 1 + 2 x 4 + 8 = 32 GPUs, all there are, whatever is asked for.
    """
    specs = [LLAMA_7B] * 12 + [LLAMA_13B] * 4 + [LLAMA_30B] * 2 + [LLAMA_65B]
    models = power_law(specs, alpha=2.1, max_rate_per_s=40)

    layout = SpatialGroupsSolver(estimator=ESTIMATOR).lay_out([nodes(4)], models)

    gpus = {u.unit_id: u.num_gpus for u in layout.units}
    held = {p.model: gpus[u.unit_id] for u in layout.plan.units for p in u.models}
    assert layout.plan.unplaced == {}
    assert [held[model.model] for model in models] == [1] * 16 + [4, 4, 8]


def test_spatial_groups__more_gpus_wanted_than_there_are__every_model_has_a_smaller_group() -> None:
    """Fig. 7: 10 x 1 + 3 x 4 + 3 x 8 would be 46. 30B fills 38 % of two GPUs, 65B as much of four."""
    specs = [LLAMA_7B] * 4 + [LLAMA_13B] * 6 + [LLAMA_30B] * 3 + [LLAMA_65B] * 3
    models = power_law(specs, alpha=0.9, max_rate_per_s=10)

    layout = SpatialGroupsSolver(estimator=ESTIMATOR).lay_out([nodes(4)], models)

    gpus = {u.unit_id: u.num_gpus for u in layout.units}
    held = {p.model: gpus[u.unit_id] for u in layout.plan.units for p in u.models}
    assert layout.plan.unplaced == {}
    assert sorted(held.values()) == [1] * 10 + [2] * 3 + [4, 4, 8]
