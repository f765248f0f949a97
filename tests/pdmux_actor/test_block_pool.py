from collections import Counter, defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.kv.prefix_cache import PrefixMatch

GEOMETRIES = {"a": KvGeometry(blocks_per_row=8, tokens_per_row=8), "b": KvGeometry(blocks_per_row=3, tokens_per_row=16)}
TOTAL = 100


class BlockPoolMachine(RuleBasedStateMachine):
    """Sequences of two models with shared prefixes, under changing quotas, against a plain model of who uses what."""

    sequences = Bundle("sequences")
    names_blocks = True

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(TOTAL, lendable_share=0.5, names_blocks=self.names_blocks)
        self.tables = {m: self.pool.add_model(m, g, 40) for m, g in GEOMETRIES.items()}
        self.quotas = {"a": 40, "b": 40}
        self.uses = Counter()  # (model, row) -> sequences
        self.blocks_of = {}
        self.known = defaultdict(PrefixMatch)  # what was seen of each prompt when it was asked for last

    @rule(target=sequences, model=st.sampled_from("ab"), prefix=st.integers(0, 2), count=st.integers(1, 6))
    def start(self, model, prefix, count):
        """A sequence of `count` rows; those that start alike have the same prefix number."""
        hashes = [bytes([prefix, i]) for i in range(count - 1)]
        cached = self.pool.match_prefix(model, hashes, self.known[model, prefix])
        assert cached == self.pool.match_prefix(model, hashes), "what is known of a prompt is what a look-up finds"
        cached = cached.copy()
        allowed = self.pool.allocatable_rows(model, reusing=cached)
        fresh = count - len(cached)
        for num_rows in range(8):
            assert self.pool.can_allocate(model, num_rows, reusing=cached) == (num_rows <= allowed)
        if fresh > allowed:
            return None
        self.pool.reuse_rows(model, cached)
        rows = self.pool.allocate_rows(model, fresh)
        assert rows is not None, "what is allocatable is allocated, also behind a reused prefix"
        assert not set(rows) & {row for name, row in self.uses if name == model}, "a row in use was given away"
        rows = [*cached, *rows]
        for row in rows:
            self.uses[model, row] += 1
            self.blocks_of[model, row] = self.blocks(model, row)
        return (model, tuple(rows), tuple(hashes))

    def blocks(self, model, row):
        return self.tables[model][row].tolist() if self.names_blocks else []

    @rule(sequence=sequences)
    def prefill_ends(self, sequence):
        if sequence is not None:
            model, rows, hashes = sequence
            if all(self.uses[model, row] for row in rows):
                self.pool.cache_prefix(model, hashes, rows[: len(hashes)])

    @rule(sequence=consumes(sequences))
    def end(self, sequence):
        if sequence is None:
            return
        model, rows, _ = sequence
        self.pool.free_rows(model, rows)
        for row in rows:
            self.uses[model, row] -= 1
        self.uses = +self.uses

    @rule(quotas=st.sampled_from([(40, 40), (90, 10), (0, 100), (50, 0)]))
    def change_quotas(self, quotas):
        self.quotas = dict(zip("ab", quotas, strict=True))
        self.pool.set_quotas(self.quotas)

    @invariant()
    def books_balance_and_rows_in_use_keep_their_blocks(self):
        self.pool.check_integrity()
        for model, row in self.uses:
            assert self.blocks(model, row) == self.blocks_of[model, row]
        used = sum(GEOMETRIES[model].blocks_per_row for model, _ in self.uses)
        assert self.pool.free_blocks + self.pool.cached_blocks + used == TOTAL

    @invariant()
    def a_model_is_sure_of_its_quota(self):
        """Unless another one holds what it borrowed, and then exactly that is missing."""
        for model, geometry in GEOMETRIES.items():
            usage = self.pool.usage(model)
            rights = max(0, usage.quota_blocks - usage.used_blocks) // geometry.blocks_per_row
            if self.pool.missing_blocks(model, rights) == 0:
                assert self.pool.allocatable_rows(model) >= rights


class CountingPoolMachine(BlockPoolMachine):
    """Rows and counts without ids of blocks: as in a simulation."""

    names_blocks = False

    @invariant()
    def tables_stay_empty(self):
        assert not any(len(table) for table in self.tables.values())


TestCountingPool = CountingPoolMachine.TestCase
TestCountingPool.settings = settings(max_examples=40, deadline=None)

TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=80, deadline=None)


def test_resize__empty_pool__has_the_new_blocks_and_none_twice():
    pool = BlockPool(8)

    pool.resize(24)

    table = pool.add_model("a", GEOMETRIES["a"], 24)
    rows = pool.allocate_rows("a", 3)
    assert sorted(table[rows].ravel()) == list(range(24))
    assert pool.free_blocks == 0
    pool.check_integrity()


def test_block_pool__of_petabytes_that_are_only_counted__takes_no_memory_for_rows_that_nobody_used():
    """8 PiB in blocks of 64 KiB, as a fleet file may have it: a list of all rows would be killed for its memory."""
    pool = BlockPool(2**37, names_blocks=False)
    pool.add_model("a", GEOMETRIES["a"], 2**37)

    rows = pool.allocate_rows("a", 100)

    assert rows is not None
    assert sorted(rows) == list(range(100))
    pool.cache_prefix("a", [bytes([i]) for i in range(100)], rows)
    pool.free_rows("a", rows)
    assert pool.cached_blocks == 100 * GEOMETRIES["a"].blocks_per_row
    pool.check_integrity()
