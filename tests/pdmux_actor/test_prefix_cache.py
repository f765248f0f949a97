from collections import Counter, OrderedDict, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from engine_rig import INFOS, PLAIN, VirtualEngine, make_request
from hypothesis import given
from hypothesis import strategies as st

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.kv.prefix_cache import HashedPieces, PrefixCache, PrefixMatch, extend_hashes
from pdmux_actor.scheduling.events import Arrival
from traces.readers.registry import read_trace

CACHING = replace(PLAIN, prefix_cache=True)
MOONCAKE = Path(__file__).parents[3] / "shared/traces/mooncake_conversation.parquet"
ROW_TOKENS = INFOS["a"].geometry.tokens_per_row  # 8


def hit_tokens(engine):
    return engine.scheduler.load_report().models[0].prefix_hit_tokens_total


def test_prefix_cache__second_turn__reuses_all_full_rows_of_the_first():
    first = make_request("first", prompt_tokens=40, max_tokens=9)
    alone = VirtualEngine([(0.0, Arrival(first))], settings=CACHING).run()
    answer = tuple(alone.tokens_of("first"))
    second = replace(make_request("second", max_tokens=5), prompt_token_ids=(*first.prompt_token_ids, *answer, 7, 7, 7))

    engine = VirtualEngine([(0.0, Arrival(first)), (1.0, Arrival(second))], settings=CACHING).run()

    # 40 prompt tokens and 8 of 9 output tokens have KV: the last one was never an input.
    assert hit_tokens(engine) == 48
    assert [e.cached_tokens for e in engine.token_events if e.cached_tokens] == [48]
    told = [e for e in engine.token_events if e.request_id == "second" and e.tokens]
    assert told[0].cached_tokens == 48  # with the first token
    fresh = VirtualEngine([(0.0, Arrival(second))], settings=CACHING).run()
    assert engine.tokens_of("second") == fresh.tokens_of("second")


def test_prefix_cache__prompts_at_the_same_time__share_after_the_first_prefill():
    arrivals = [(0.001 * i, Arrival(make_request(f"r{i}", prompt_tokens=41, max_tokens=30))) for i in range(4)]
    engine = VirtualEngine(arrivals, policy="prefill_first", settings=replace(CACHING, max_batch_tokens=41)).run()

    assert hit_tokens(engine) == 3 * 40


def test_prefix_cache__whole_prompt_is_cached__last_row_is_computed_again():
    arrivals = [(0.5 * i, Arrival(make_request(f"r{i}", prompt_tokens=40, max_tokens=2))) for i in range(2)]

    assert hit_tokens(VirtualEngine(arrivals, settings=CACHING).run()) == 40 - ROW_TOKENS


def test_prefix_cache__salts__share_blocks_with_the_same_salt_only():
    salts = ["", "x", "y", "x", "", "y", "z"]
    arrivals = [
        (0.5 * i, Arrival(replace(make_request(f"r{i}", prompt_tokens=40, max_tokens=2), cache_salt=salt)))
        for i, salt in enumerate(salts)
    ]
    engine = VirtualEngine(arrivals, settings=CACHING).run()

    hits = {e.request_id for e in engine.token_events if e.cached_tokens}
    assert hits == {"r3", "r4", "r5"}, "each is the second of its salt"
    assert hit_tokens(engine) == 3 * (40 - ROW_TOKENS)


def test_prefix_cache__other_model__shares_nothing():
    requests = [make_request("x", "a", 40, 2), make_request("y", "b", 40, 2)]
    arrivals = [(0.5 * i, Arrival(r)) for i, r in enumerate(requests)]
    engine = VirtualEngine(arrivals, models="ab", quota_blocks=280, settings=CACHING).run()

    assert [m.prefix_hit_tokens_total for m in engine.scheduler.load_report().models] == [0, 0]


def test_prefix_cache__memory_is_needed__makes_room():
    arrivals = [(0.2 * i, Arrival(make_request(f"r{i}", prompt_tokens=120, max_tokens=10, first=i))) for i in range(12)]
    engine = VirtualEngine(arrivals, quota_blocks=600, settings=CACHING).run()

    assert all(len(engine.tokens_of(f"r{i}")) == 10 for i in range(12))
    assert engine.scheduler.load_report().models[0].preemptions_total == 0


def test_prefix_cache__preempted_sequence__finds_its_own_rows():
    requests = [make_request(f"r{i}", prompt_tokens=10, max_tokens=40, first=i) for i in range(6)]
    quota = 10 * INFOS["a"].geometry.blocks_per_row
    engine = VirtualEngine(
        [(0.0, Arrival(r)) for r in requests], quota_blocks=quota, settings=replace(CACHING, kv_watermark=0.0)
    ).run()

    assert engine.scheduler.load_report().models[0].preemptions_total > 0
    assert hit_tokens(engine) > 0
    assert all(len(engine.tokens_of(r.request_id)) == 40 for r in requests)


def test_prefix_cache__prompts_rotated_by_their_length__share_nothing_beyond_it(monkeypatch):
    """Of dynamic NTK and LongRoPE: what starts alike has the same KV only up to the original length."""
    monkeypatch.setitem(INFOS, "a", replace(INFOS["a"], own_kv_beyond_tokens=40))
    lengths = {"short": 33, "again": 40, "long": 60, "longer": 80}
    requests = {name: make_request(name, prompt_tokens=length, max_tokens=30) for name, length in lengths.items()}
    alone = {name: VirtualEngine([(0.0, Arrival(r))]).run().tokens_of(name) for name, r in requests.items()}

    arrivals = [(0.5 * i, Arrival(request)) for i, request in enumerate(requests.values())]
    engine = VirtualEngine(arrivals, quota_blocks=600, settings=CACHING).run()

    assert hit_tokens(engine) == 32  # of "again" only
    assert {name: engine.tokens_of(name) for name in requests} == alone


_prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["insert", "forget", "ask"]), _prompts), max_size=60),
    remembered=st.integers(1, 4),
)
def test_prefix_match__cache_changes_in_any_way__is_what_a_new_look_up_finds(steps, remembered):
    """Also of prefixes that are cached without shorter ones."""
    cache, known, next_row, rows = PrefixCache(remembered), defaultdict(PrefixMatch), 0, []
    for what, prompt in steps:
        hashes = [bytes(prompt[: i + 1]) for i in range(len(prompt))]
        if what == "insert":
            cache.insert(hashes, range(next_row, next_row + len(hashes)))
            rows += [row for row in range(next_row, next_row + len(hashes)) if cache.holds(row)]
            next_row += len(hashes)
        elif what == "forget" and rows:
            cache.forget(rows.pop(sum(prompt) % len(rows)))
        else:
            assert cache.match(hashes, known[tuple(prompt)]) == cache.match(hashes)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=400), min_size=1, max_size=6), st.integers(1, 3))
def test_hashed_pieces__prompts_that_start_alike_and_grow__have_the_names_of_each_alone(endings, num_pieces):
    pieces = HashedPieces(most_tokens=128 * num_pieces)
    for ending in endings:
        tokens = [*([3] * 200), *ending]
        hashes, alone = [], []
        for length in (len(tokens) // 3, len(tokens)):
            pieces.extend(hashes, tokens[:length], 2)
        extend_hashes(alone, tokens, 2)
        assert hashes == alone


class CountingLookUps(dict):
    count = 0

    def get(self, key):
        self.count += 1
        return super().get(key)


@pytest.mark.parametrize("policy", ["mux", "chunked_prefill", "prefill_first"])
def test_prefix_cache__many_prompts_wait_behind_one_prefix__each_row_is_looked_up_once(policy):
    """Policies ask for the prompts' shapes several times per decision, over many decisions."""
    prefix = make_request("first", prompt_tokens=480, max_tokens=1)
    same = [
        replace(make_request(f"r{i}", max_tokens=8), prompt_token_ids=(*prefix.prompt_token_ids, *[i + 3] * 15))
        for i in range(8)
    ]
    arrivals = [(0.0, Arrival(prefix)), *[(1.0, Arrival(request)) for request in same]]
    settings = replace(CACHING, max_running_sequences=2, kv_watermark=0.0)
    engine = VirtualEngine(arrivals, policy=policy, quota_blocks=600, settings=settings)
    while not engine.ends_of("first"):
        engine.loop.turn()
    cache = engine.scheduler._pool._models["a"].cache
    cache._row_of = look_ups = CountingLookUps(cache._row_of)
    decisions = len(engine.scheduler.log.decisions())

    engine.run()

    rows_per_prompt = (480 + 15) // ROW_TOKENS
    decisions = len(engine.scheduler.log.decisions()) - decisions
    assert hit_tokens(engine) == 8 * 480
    assert look_ups.count <= 8 * rows_per_prompt + 8 * decisions


@pytest.mark.parametrize("policy", ["mux", "muxwise", "duetserve", "adbs", "chunked_prefill", "temporal"])
def test_prefix_cache__any_decision_while_memory_lasts__looks_each_prompt_up_once(policy, monkeypatch):
    match, most = PrefixCache.match, []

    def counted(cache, hashes, known=None):
        most[-1][id(known)] += 1
        return match(cache, hashes, known)

    monkeypatch.setattr(PrefixCache, "match", counted)
    arrivals = [
        (0.05 * (i // 4), Arrival(make_request(f"r{i}", prompt_tokens=40 + i, max_tokens=12))) for i in range(24)
    ]
    engine = VirtualEngine(arrivals, policy=policy, quota_blocks=600, settings=CACHING)
    decide = engine.scheduler.decide

    def counting(now_s):
        most.append(Counter())
        return decide(now_s)

    monkeypatch.setattr(engine.scheduler, "decide", counting)
    engine.run()

    assert len([looked_up for looked_up in most if looked_up]) >= 6
    assert {count for looked_up in most for count in looked_up.values()} == {1}


@pytest.mark.shared
@pytest.mark.skipif(not MOONCAKE.exists(), reason="../shared/traces is absent")
@pytest.mark.parametrize("capacity", [1_000, 3_000, 10_000, 30_000, 100_000])
def test_prefix_cache__mooncake_conversation__hits_equal_an_exact_lru(capacity):
    """Through the real pool: one block per row, hits in tokens of 512-token blocks."""
    records = read_trace(MOONCAKE).records
    model = KvGeometry(blocks_per_row=1, tokens_per_row=512)
    pool = BlockPool(capacity)
    pool.add_model("m", model, capacity)
    lru = OrderedDict()
    hits = expected = 0
    for record in records:
        hashes = [block.to_bytes(8, "little") for block in record.prefix_block_hashes]
        if len(hashes) > capacity:
            continue
        cached = pool.match_prefix("m", hashes)
        hits += min(len(cached) * 512, record.input_tokens)
        pool.reuse_rows("m", cached)
        rows = cached + pool.allocate_rows("m", len(hashes) - len(cached))
        pool.cache_prefix("m", hashes, rows)
        pool.free_rows("m", rows)
        expected += min(_lru_hits(lru, record.prefix_block_hashes, capacity) * 512, record.input_tokens)

    total = sum(record.input_tokens for record in records)
    assert hits == expected
    assert 0 < hits / total < 0.4
    pool.check_integrity()


def _lru_hits(lru, blocks, capacity):
    """Blocks of the cached prefix; then all blocks are touched, from the end to the start, and the oldest go."""
    num_hits = 0
    for block in blocks:
        if block not in lru:
            break
        num_hits += 1
    for block in reversed(blocks):
        lru.pop(block, None)
        lru[block] = None
    while len(lru) > capacity:
        lru.popitem(last=False)
    return num_hits
