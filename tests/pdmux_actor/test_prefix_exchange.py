"""KV of prompts goes from engine to engine: the tokens are those of one engine that did all of it."""

import queue
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from engine_rig import INFOS, TOTAL_BLOCKS
from measured_cpu import measured_cpu

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.kv.block_pool import BlockPool
from pdmux_actor.kv.prefix_kv import NOTHING_KEPT, PromptStart
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.adapters import Adapters
from pdmux_actor.scheduling.events import Arrival, AttachModel, KeepPrefix, ReadPrefix, Stop
from pdmux_actor.scheduling.prefix_exchange import PrefixExchange
from pdmux_actor.scheduling.queues import ModelQueue
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.roofline import RooflineLatency

MODEL = "demo-llama"
PROMPT = tuple((7 * i) % 200 + 20 for i in range(333))
DEADLINE_S = 60


class RealEngine:
    """An engine of ours on the CPU, on a thread of this process."""

    def __init__(self, folder, settings, quota_tokens, block_bytes):
        self._events = told = queue.SimpleQueue()  # of its own, so that an engine that has ended is gone with its pool
        executor = TorchCpuExecutor(
            kv_pool_bytes=64 << 20, block_bytes=block_bytes, default_dtype="float32", device=measured_cpu()
        )
        self.loop, self.inbox = build_engine(
            executor,
            policy="mux",
            settings=settings,
            latency=RooflineLatency(executor.device),
            outbox=lambda events: [told.put(event) for event in events],
        )
        info = executor.load_model(ModelSource(model=MODEL, source=str(folder), max_model_len=1024))
        self.tokens_per_row = info.geometry.tokens_per_row
        quota_rows = -(-quota_tokens // self.tokens_per_row)
        self.inbox.put(AttachModel(info, quota_rows * info.geometry.blocks_per_row))
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def answer(self, prompt, max_tokens, prior=(), **changes):
        """Tokens, and how many of the prompt's were cached."""
        request = GenerateRequest(
            request_id="r",
            model=MODEL,
            prompt_token_ids=prompt,
            output_token_ids=tuple(prior),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            slo=Slo(ttft_s=5.0, tbt_s=1.0),
        )
        self.inbox.put(Arrival(replace(request, **changes)))
        tokens, cached, finish = [], 0, None
        while finish is None:
            event = self._events.get(timeout=DEADLINE_S)
            tokens += [t.token_id for t in event.tokens]
            cached, finish = cached + event.cached_tokens, event.finish
        return tokens, cached

    def read(self, start, first_row, most_bytes=1 << 30):
        answered = queue.SimpleQueue()
        self.inbox.put(ReadPrefix(start, first_row, most_bytes, answered.put))
        return answered.get(timeout=DEADLINE_S)

    def keep(self, start, rows):
        answered = queue.SimpleQueue()
        self.inbox.put(KeepPrefix(start, rows, answered.put))
        return answered.get(timeout=DEADLINE_S)

    def check(self):
        self.loop.scheduler.check_integrity()


@pytest.fixture
def start(demo_checkpoints):
    engines = []

    @contextmanager
    def started():
        try:
            yield
        finally:
            for engine in engines:
                engine.inbox.put(Stop())
                engine.thread.join(30)
                engine.check()

    with started():

        def make(quota_tokens=4000, block_bytes=8192, **settings):
            engine = RealEngine(demo_checkpoints[MODEL], SchedulerSettings(**settings), quota_tokens, block_bytes)
            engines.append(engine)
            return engine

        yield make


def test_prefix__moved_piece_by_piece__is_cached_and_says_the_same(start):
    one, other, alone = start(), start(), start()
    prompt = PromptStart(model=MODEL, token_ids=PROMPT)
    expected, _ = alone.answer(PROMPT, 24)

    first, _ = one.answer(PROMPT, 1)
    kept = other.keep(prompt, None)
    full_rows = len(PROMPT) // one.tokens_per_row
    assert full_rows > 3
    assert (kept.num_rows, kept.num_missing) == (0, full_rows)
    row_bytes = one.read(prompt, 0).layout.row_bytes
    pieces = 0
    while kept.num_missing:
        kept = other.keep(prompt, one.read(prompt, kept.num_rows, most_bytes=2 * row_bytes))
        pieces += 1
    assert pieces == -(-full_rows // 2)
    assert one.read(prompt, full_rows) is None
    rest, cached = other.answer(PROMPT, 24, prior=first)

    assert first + rest == expected
    assert cached == full_rows * one.tokens_per_row


def test_prefix__half_of_it_is_there__only_the_rest_is_taken(start):
    one, other = start(), start()
    half = PROMPT[: 3 * one.tokens_per_row]
    expected, _ = one.answer(PROMPT, 8)
    other.answer(half, 1)
    prompt = PromptStart(model=MODEL, token_ids=PROMPT)
    assert other.keep(prompt, None).num_rows == 3

    kept = other.keep(prompt, one.read(prompt, 1))

    assert kept.num_missing == 0
    assert other.answer(PROMPT, 8)[0] == expected


def test_prefix__of_another_salt_model_or_layout__is_not_there_and_not_taken(start):
    one, other, finer = start(), start(), start(block_bytes=4096)
    one.answer(PROMPT, 1)
    salted = PromptStart(model=MODEL, token_ids=PROMPT, cache_salt="somebody's")
    prompt = PromptStart(model=MODEL, token_ids=PROMPT)
    rows = one.read(prompt, 0)

    assert one.read(salted, 0) is None
    assert one.read(PromptStart(model="nobody", token_ids=PROMPT), 0) is None
    assert finer.keep(prompt, rows).num_rows == 0
    assert other.keep(prompt, replace_data(rows, rows.data[:-1])).num_rows == 0
    assert other.keep(prompt, replace_first(rows, 1)).num_rows == 0  # nothing before it


def replace_data(rows, data):
    return type(rows)(first_row=rows.first_row, num_rows=rows.num_rows, layout=rows.layout, data=data)


def replace_first(rows, first_row):
    return type(rows)(first_row=first_row, num_rows=rows.num_rows, layout=rows.layout, data=rows.data)


def test_prefix__engine_that_caches_none__takes_and_gives_none(start):
    one, other = start(), start(prefix_cache=False)
    one.answer(PROMPT, 1)
    other.answer(PROMPT, 1)
    prompt = PromptStart(model=MODEL, token_ids=PROMPT)

    assert other.read(prompt, 0) is None
    assert other.keep(prompt, one.read(prompt, 0)) == NOTHING_KEPT


def test_prefix__no_room_in_the_quota__is_left_out(start):
    one, other = start(), start(quota_tokens=96, kv_lendable_share=0.0)
    one.answer(PROMPT, 1)
    prompt = PromptStart(model=MODEL, token_ids=PROMPT)

    kept = other.keep(prompt, one.read(prompt, 0))

    assert kept.num_rows == 0
    assert other.answer(PROMPT[:20], 2)[0] == one.answer(PROMPT[:20], 2)[0]


def test_exchange__rows_that_nobody_used_meanwhile__go_from_the_end_of_a_prompt():
    pool, info = BlockPool(TOTAL_BLOCKS), INFOS["a"]
    pool.add_model("a", info.geometry, TOTAL_BLOCKS)
    exchange = PrefixExchange(pool, {"a": ModelQueue(info=info, pool=pool)}, Adapters())
    per_row = info.geometry.tokens_per_row
    prompt = PromptStart(model="a", token_ids=tuple(range(4 * per_row)))
    for first in (0, 2):
        known = exchange.of(prompt)
        assert known is not None
        room = exchange.room_for(known, first, 2)
        assert room is not None
        exchange.fill(room)
        pool.check_integrity()
    assert pool.cached_blocks == 4 * info.geometry.blocks_per_row

    free_rows = pool.free_blocks // info.geometry.blocks_per_row
    taken = pool.allocate_rows("a", free_rows + 1)

    assert taken is not None
    known = exchange.of(prompt)
    assert known is not None
    assert len(known.rows) == 3
    pool.check_integrity()


def test_exchange__prompt_of_an_adapter__goes_into_its_base_under_a_name_of_its_own():
    pool, info = BlockPool(TOTAL_BLOCKS), INFOS["a"]
    pool.add_model("a", info.geometry, TOTAL_BLOCKS)
    queue, adapters = ModelQueue(info=info, pool=pool), Adapters()
    adapters.attach("x", queue, 40)
    exchange = PrefixExchange(pool, {"a": queue}, adapters)
    tokens = tuple(range(2 * info.geometry.tokens_per_row))
    of_adapter = exchange.of(PromptStart(model="x", token_ids=tokens))
    assert of_adapter is not None
    room = exchange.room_for(of_adapter, 0, 2)
    assert room is not None

    exchange.fill(room)

    found = {model: exchange.of(PromptStart(model=model, token_ids=tokens)) for model in ("a", "x", "y")}
    assert {model: prompt and len(prompt.rows) for model, prompt in found.items()} == {"a": 0, "x": 2, "y": None}
    assert of_adapter.model == "a"
    assert adapters.leave("x") == "a"
    assert exchange.of(PromptStart(model="x", token_ids=tokens)) is None
