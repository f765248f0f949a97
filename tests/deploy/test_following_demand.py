"""Solver, estimate and control loop together: eight A40s, twelve models, and popularity that flips."""

import math
from dataclasses import replace

from fleet_model import World, catalog, catalog_model

from deploy.control.control_rules import ControlRules, Replan
from placement.solvers.search import SearchSolver
from profiler.specs import ModelSpec
from traces.synthetic import power_law_popularity

LLAMA_7B = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    intermediate_size=11008,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=32000,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    dtype="bfloat16",
)
MODELS = tuple(f"m{i:02d}" for i in range(12))
RATE_PER_S = 12.0
GIB = 2**30
STARVED_RULES = ControlRules(replan="auto", replan_every_s=5.0, min_residency_s=20.0)


def world(replan: Replan) -> World:
    rules = ControlRules(replan=replan, replan_every_s=5.0, min_residency_s=20.0, max_moves_per_min=20)
    models = [catalog_model(m, replicas=1, spec=LLAMA_7B, max_replicas=4) for m in MODELS]
    made = World(catalog(*models), expected_units=8, solver=SearchSolver(), rules=rules)
    for _ in range(8):
        unit = made.start_unit(total_blocks=8 * GIB // 8192, memory_bytes=48 * GIB)
        unit.device = "A40"
    return made


def one_starves(rules: ControlRules, *, per_s: float) -> World:
    """40 models, each alone on an A40, and two spare ones; one comes to be asked for more than all its homes can do."""
    names = tuple(f"m{i:02d}" for i in range(40))
    models = [catalog_model(m, replicas=1, spec=LLAMA_7B, max_replicas=8) for m in names]
    made = World(catalog(*models), expected_units=42, solver=SearchSolver(rounds=20), rules=rules)
    made.prompt_tokens, made.output_tokens = 1400, 16
    for _ in range(42):
        unit = made.start_unit(total_blocks=8 * GIB // 8192, memory_bytes=30 * GIB)
        unit.device = "A40"
    made.beat(40, asks=dict.fromkeys(names, 1))
    for beat in range(60):
        hot = int((beat + 1) * per_s / 2) - int(beat * per_s / 2)
        made.beat(asks={m: hot if m == names[0] else 1 for m in names})
    return made


def asks_of(popularity: dict[str, float], beat: int) -> dict[str, int]:
    """Requests of one beat: every model at its own steady pace, of 1,400 tokens and 16 out."""
    per_beat = {m: 0.5 * RATE_PER_S * share for m, share in popularity.items()}
    return {m: int((beat + 1) * r) - int(beat * r) for m, r in per_beat.items()}


def flip(made: World) -> tuple[list[set[str]], int]:
    """Who served the model that is the most popular at last, beat by beat after the flip, and beats without a model."""
    made.prompt_tokens, made.output_tokens = 1400, 16
    before = power_law_popularity(MODELS, 1.2)
    after = dict(zip(MODELS, reversed(list(before.values())), strict=True))
    for beat in range(240):
        made.beat(asks=asks_of(before, beat))
    homes, unserved = [], 0
    for beat in range(360):
        made.beat(asks=asks_of(after, beat))
        homes.append(set(made.serving(MODELS[-1])))
        unserved += sum(not made.serving(m) for m in MODELS)
    return homes, unserved


def test_flip__closed_loop__gives_replicas_to_who_is_asked_for_and_never_drops_a_model() -> None:
    made = world("auto")

    homes, unserved = flip(made)

    assert len(homes[0]) == 1
    assert len(homes[-1]) > 1
    assert unserved == 0
    first_grown = next(i for i, units in enumerate(homes) if len(units) > 1)
    assert first_grown * 0.5 <= 60.0, "seconds until the first new replica serves"
    assert len([d for d in made.decided("plan") if "in time instead of" in d]) <= 6, "it settles"


def test_flip__not_followed__stays_as_it_was() -> None:
    made = world("off")

    homes, unserved = flip(made)

    assert homes[0] == homes[-1]
    assert unserved == 0


def test_demand__one_model_of_many_starves__gets_a_replica_although_the_fleet_gains_little() -> None:
    made = one_starves(STARVED_RULES, per_s=15.0)

    followed = [d for d in made.decided("plan") if "in time instead of" in d]
    assert any("of m00 served instead of" in d for d in followed)
    assert len(made.serving("m00")) == 3
    assert len(followed) <= 3, "it settles"


def test_demand__one_model_of_many_starves_beyond_help__is_moved_for_by_its_own_gain_and_not_by_the_fleets() -> None:
    """All spare units serve a part of what it is asked for, and hardly any of that in time: the fleet gains nothing."""
    led = one_starves(STARVED_RULES, per_s=60.0)
    by_fleet = one_starves(replace(STARVED_RULES, min_model_gain=1.0, min_saved_per_gib_s=math.inf), per_s=60.0)

    assert len(led.serving("m00")) == 3
    assert len(by_fleet.serving("m00")) < 3
    assert by_fleet.decided("kept")
