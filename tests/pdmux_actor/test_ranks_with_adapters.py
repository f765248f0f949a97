"""Adapters on a unit of two ranks say what they say on one, batched with each other and their base."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from lora_adapters import ALL_MODULES, AdapterShape, random_adapter
from rank_rig import EngineRun, running

from pdmux_actor.errors import ModelLoadError
from pdmux_actor.executor.base import HostingExecutor
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.models.random_checkpoint import CheckpointShape, write_random_checkpoint
from pdmux_actor.scheduling.events import AttachAdapter, SetPolicy
from pdmux_actor.scheduling.policies.registry import POLICIES

SIZES = {"num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "head_dim": 16}
# Biases and a KV head for each rank; one KV head, which both have.
BASES = {
    "biased": CheckpointShape(model_type="qwen2", num_kv_heads=2, **SIZES),
    "repeated": CheckpointShape(model_type="qwen3", num_kv_heads=1, **SIZES),
    "experts": CheckpointShape(model_type="qwen3_moe", num_kv_heads=2, **SIZES),
}
ADAPTERS = {
    "queries": AdapterShape(4, ("q_proj", "v_proj")),
    "all": AdapterShape(8, ALL_MODULES, alpha=8.0, options={"use_rslora": True}),
    "inner": AdapterShape(3, ("o_proj", "down_proj", "up_proj")),
}
OF_EXPERTS = {
    "queries": AdapterShape(4, ("q_proj", "v_proj")),
    "all": AdapterShape(8, ALL_MODULES[:4], alpha=8.0, options={"use_rslora": True}),
    "inner": AdapterShape(3, ("o_proj", "k_proj")),
}
LENGTHS = (1, 150, 33, 64, 7, 97, 40)
MEMBERS = ("base", "queries", "all", "inner", "all", "base", "queries")


@dataclass(frozen=True)
class Family:
    name: str
    base: Path
    adapters: Mapping[str, Path]

    def model(self, member: str) -> str:
        return self.name if member == "base" else f"{self.name}-{member}"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Family]:
    made = {}
    for base, of_base in BASES.items():
        folder = tmp_path_factory.mktemp(base)
        write_random_checkpoint(folder / "base", of_base, seed=3)
        adapters = {
            name: random_adapter(folder / "base", folder / name, shape, seed)
            for seed, (name, shape) in enumerate((OF_EXPERTS if base == "experts" else ADAPTERS).items())
        }
        made[base] = Family(base, folder / "base", adapters)
    return made


@pytest.fixture(scope="module", params=list(BASES))
def family(request: pytest.FixtureRequest, families: Mapping[str, Family]) -> Family:
    return families[request.param]


def asked(turn: str, family: Family) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            request_id=f"{turn}/{place}",
            model=family.model(member),
            prompt_token_ids=tuple((3 * i) % 200 + 20 for i in range(length)),
            sampling=SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True),
            slo=Slo(ttft_s=5.0, tbt_s=1.0),
        )
        for place, (member, length) in enumerate(zip(MEMBERS, LENGTHS, strict=True))
    ]


def load(unit: tuple[EngineRun, HostingExecutor], family: Family, name: str) -> None:
    run, executor = unit
    executor.load_adapter(family.model(name), family.name, str(family.adapters[name]), revision=None)
    run.inbox.put(AttachAdapter(family.model(name), family.name, 1000))


@contextmanager
def unit_with_adapters(families: Mapping[str, Family], num_ranks: int) -> Iterator[tuple[EngineRun, HostingExecutor]]:
    with running({name: family.base for name, family in families.items()}, num_ranks) as unit:
        for family in families.values():
            for name in family.adapters:
                load(unit, family, name)
        yield unit


@pytest.fixture(scope="module")
def said_by_one_rank(families: Mapping[str, Family]) -> Mapping[str, dict[str, list[int]]]:
    with unit_with_adapters(families, 1) as (run, _):
        return {name: run.answers(asked("alone", family)) for name, family in families.items()}


@pytest.fixture(scope="module")
def expected(family: Family, said_by_one_rank: Mapping[str, dict[str, list[int]]]) -> dict[str, list[int]]:
    return said_by_one_rank[family.name]


@pytest.fixture(scope="module")
def unit_of_two(families: Mapping[str, Family]) -> Iterator[tuple[EngineRun, HostingExecutor]]:
    with unit_with_adapters(families, 2) as unit:
        yield unit


def test_adapters_of_the_test__change_what_the_base_says(family: Family, expected: dict[str, list[int]]) -> None:
    with running({family.name: family.base}, 1) as (run, _):
        of_base = [request for request in asked("base", family) if request.model == family.name]
        plain = run.answers(of_base)
        others = [
            GenerateRequest(
                request_id=request.request_id, model=family.name, prompt_token_ids=request.prompt_token_ids,
                sampling=request.sampling, slo=request.slo,
            )
            for request in asked("plain", family)
            if len(request.prompt_token_ids) > 1
        ]  # fmt: skip
        unchanged = run.answers(others)

    assert all(expected[place] == tokens for place, tokens in plain.items())
    changed = [place for place, tokens in unchanged.items() if expected[place] != tokens]
    assert changed == [place for place in unchanged if MEMBERS[int(place)] != "base"]


@pytest.mark.parametrize("policy", POLICIES)
def test_two_ranks__adapters_under_any_policy__say_what_one_rank_says(
    unit_of_two: tuple[EngineRun, HostingExecutor], family: Family, expected: dict[str, list[int]], policy: str
) -> None:
    run, _ = unit_of_two

    assert run.answers(asked(policy, family), SetPolicy(policy)) == expected


def test_two_ranks__adapter_goes_and_comes_again__says_the_same(
    unit_of_two: tuple[EngineRun, HostingExecutor], family: Family, expected: dict[str, list[int]]
) -> None:
    run, _ = unit_of_two

    run.detach(family.model("queries"))
    load(unit_of_two, family, "queries")

    assert run.answers(asked("again", family), SetPolicy("mux")) == expected


def test_two_ranks__adapter_of_another_base__is_refused_and_the_others_serve_on(
    unit_of_two: tuple[EngineRun, HostingExecutor], family: Family, expected: dict[str, list[int]], tmp_path: Path
) -> None:
    run, executor = unit_of_two
    shape = CheckpointShape(
        model_type="llama", num_layers=2, hidden_size=32, intermediate_size=64, num_heads=4, num_kv_heads=2, head_dim=8
    )
    write_random_checkpoint(tmp_path / "other", shape, seed=0)
    folder = random_adapter(tmp_path / "other", tmp_path / "adapter", OF_EXPERTS["all"])

    with pytest.raises(ModelLoadError, match=r"set `base` to the model that the adapter was trained on"):
        executor.load_adapter("other", family.name, str(folder), revision=None)

    assert run.answers(asked("after", family)) == expected
