from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.geometry import KvGeometry

GEOMETRIES = {"a": KvGeometry(blocks_per_row=8, tokens_per_row=8), "b": KvGeometry(blocks_per_row=3, tokens_per_row=16)}


class BlockPoolMachine(RuleBasedStateMachine):
    """Allocations of two models of different shapes under changing quotas, against a plain model of who owns what."""

    rows = Bundle("rows")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(100)
        self.tables = {m: self.pool.add_model(m, g, 40) for m, g in GEOMETRIES.items()}
        self.quotas = {"a": 40, "b": 40}
        self.owned = {}

    @rule(target=rows, model=st.sampled_from("ab"), count=st.integers(1, 6))
    def allocate(self, model, count):
        need = count * GEOMETRIES[model].blocks_per_row
        used = self.pool.usage(model).used_blocks
        row_ids = self.pool.allocate_rows(model, count)
        fits = used + need <= self.quotas[model] and need <= 100 - sum(len(b) for b in self.owned.values())
        assert (row_ids is not None) == fits
        if row_ids is None:
            return (model, ())
        for row in row_ids:
            self.owned[model, row] = self.tables[model][row].tolist()
        return (model, tuple(row_ids))

    @rule(held=consumes(rows))
    def free(self, held):
        model, row_ids = held
        self.pool.free_rows(model, row_ids)
        for row in row_ids:
            del self.owned[model, row]

    @rule(model=st.sampled_from("ab"), quota=st.integers(0, 60))
    def set_quota(self, model, quota):
        self.quotas[model] = quota
        self.pool.set_quotas({model: quota})

    @invariant()
    def blocks_balance_and_rows_keep_their_blocks(self):
        self.pool.check_integrity()
        for (model, row), blocks in self.owned.items():
            assert self.tables[model][row].tolist() == blocks
        assert self.pool.free_blocks == 100 - sum(len(b) for b in self.owned.values())


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, deadline=None)
