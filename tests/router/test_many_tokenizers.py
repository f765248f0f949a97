"""A fleet of more models than tokenizers are kept, most of them fine-tunes of few bases."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_unit import write_byte_tokenizer
from served_gateway import InlineText

from pdmux_actor.messages import Slo
from router.errors import Overloaded, TokenizerUnavailable
from router.limits import GatewayLimits
from router.text import worker
from router.text.calls import (
    EncodeText,
    LoadTokenizer,
    TextAnswer,
    TextCall,
    TokenizerFailed,
    TokenizerGone,
    TokenizerKey,
)
from router.text.shared_tokenizers import SharedTokenizers
from router.text.tokenization import Tokenizers
from router.text.worker import TextWorker
from router.view import ModelCard

KEPT = 2


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MAX_TOKENIZERS", KEPT)


def checkpoint(folder: Path, *, base: int) -> TokenizerKey:
    """A model whose tokenizer.json is that of all models of its base."""
    file = write_byte_tokenizer(folder) / "tokenizer.json"
    file.write_text(file.read_text() + base * "\n")
    return TokenizerKey(str(folder), None)


def call(key: TokenizerKey) -> EncodeText:
    return EncodeText(0, key, "hi", add_special_tokens=False, max_tokens=9)


def card(key: TokenizerKey) -> ModelCard:
    slo = Slo(ttft_s=1.0, tbt_s=0.1)
    return ModelCard(model=key.source, source=key.source, revision=None, slo=slo, created_s=0)


def test_worker__many_models_of_few_bases__forgets_none(tmp_path: Path) -> None:
    worker = TextWorker()
    keys = [checkpoint(tmp_path / str(i), base=i % KEPT) for i in range(10 * KEPT)]

    for key in keys:
        worker.load(LoadTokenizer(0, key))
    answers = [worker.answer(call(key)) for key in keys]

    assert not any(isinstance(answer, TokenizerGone) for answer in answers)
    backends = {id(encoder._backend) for encoder in worker._encoders.values()}
    assert len(backends) == KEPT


def test_worker__more_bases_than_are_kept__forgets_the_least_recently_used(tmp_path: Path) -> None:
    worker = TextWorker()
    old, used, new = (checkpoint(tmp_path / str(i), base=i) for i in range(3))

    worker.load(LoadTokenizer(0, old))
    worker.load(LoadTokenizer(0, used))
    worker.answer(call(used))
    worker.load(LoadTokenizer(0, new))

    assert isinstance(worker.answer(call(old)), TokenizerGone)
    assert not isinstance(worker.answer(call(used)), TokenizerGone)
    assert len(worker._shared._by_digest) == KEPT, "what nobody has any more is no longer in memory"


@pytest.fixture
async def tokenizers() -> AsyncIterator[Tokenizers]:
    made = Tokenizers(GatewayLimits(), clock=time.monotonic, start=InlineText.start)
    yield made
    made.close()


async def test_tokenizers__in_turn_of_more_models_than_are_kept__all_are_encoded(
    tokenizers: Tokenizers, tmp_path: Path
) -> None:
    cards = [card(checkpoint(tmp_path / str(i), base=i)) for i in range(2 * KEPT)]

    for _ in range(2):
        for each in cards:
            assert await tokenizers.encode(each, "hi", add_special_tokens=False, max_tokens=9) == [104, 105]


class SlowToLoad(InlineText):
    """Loads a tokenizer a second time only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()
        self.loads: list[str] = []

    async def ask(self, call: TextCall) -> TextAnswer:
        if isinstance(call, LoadTokenizer):
            if call.tokenizer.source in self.loads:
                await self.may_load.wait()
            self.loads.append(call.tokenizer.source)
        return await super().ask(call)


async def test_tokenizers__one_is_loaded_anew__text_of_other_models_does_not_wait(tmp_path: Path) -> None:
    service = SlowToLoad()

    async def started(niceness: int) -> SlowToLoad:
        return service

    tokenizers = Tokenizers(GatewayLimits(), clock=time.monotonic, start=started)
    cards = [card(checkpoint(tmp_path / str(i), base=i)) for i in range(KEPT + 1)]
    for each in cards:
        await tokenizers.encode(each, "hi", add_special_tokens=False, max_tokens=9)

    forgotten = asyncio.create_task(tokenizers.encode(cards[0], "hi", add_special_tokens=False, max_tokens=9))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await tokenizers.encode(cards[-1], "hi", add_special_tokens=False, max_tokens=9) == [104, 105]
    assert not forgotten.done()
    service.may_load.set()
    assert await forgotten == [104, 105]
    tokenizers.close()


async def test_tokenizers__forgotten_again_before_its_turn__is_overload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = Tokenizers(GatewayLimits(), clock=time.monotonic, start=InlineText.start)
    only = card(checkpoint(tmp_path / "only", base=0))
    await tokenizers.of(only)
    monkeypatch.setattr(TextWorker, "_tokenize", lambda self, asked: TokenizerGone(asked.call))

    with pytest.raises(Overloaded):
        await tokenizers.encode(only, "hi", add_special_tokens=False, max_tokens=9)
    tokenizers.close()


class FailsToLoadAnew(InlineText):
    """Each tokenizer loads once; another load of it never ends while `stalls`, else finds no file."""

    def __init__(self, *, stalls: bool) -> None:
        super().__init__()
        self.stalls = stalls
        self.loads: list[str] = []

    async def ask(self, call: TextCall) -> TextAnswer:
        if isinstance(call, LoadTokenizer):
            self.loads.append(call.tokenizer.source)
            if self.loads.count(call.tokenizer.source) > 1:
                if self.stalls:
                    await asyncio.Event().wait()
                return TokenizerFailed(call.call, "no such file")
        return await super().ask(call)


@pytest.mark.parametrize(("stalls", "why"), [(True, "TextTooSlow"), (False, "no such file")])
async def test_tokenizers__one_does_not_load_anew__is_unavailable_and_was_tried_once(
    tmp_path: Path, stalls: bool, why: str
) -> None:
    service = FailsToLoadAnew(stalls=stalls)

    async def started(niceness: int) -> FailsToLoadAnew:
        return service

    tokenizers = Tokenizers(GatewayLimits(tokenizer_load_timeout_s=0.05), clock=time.monotonic, start=started)
    cards = [card(checkpoint(tmp_path / str(i), base=i)) for i in range(KEPT + 1)]
    for each in cards:
        await tokenizers.encode(each, "hi", add_special_tokens=False, max_tokens=9)

    for _ in range(2):
        with pytest.raises(TokenizerUnavailable) as refused:
            await tokenizers.encode(cards[0], "hi", add_special_tokens=False, max_tokens=9)
        assert why in refused.value.reason
    assert service.loads.count(cards[0].source) == 2, "not in the lane's turn, in which others would wait for it"
    tokenizers.close()


def test_shared__file_without_the_type_of_its_model__is_read(tmp_path: Path) -> None:
    """As tokenizers wrote them before 0.9, and reads them still."""
    file = write_byte_tokenizer(tmp_path) / "tokenizer.json"
    state = json.loads(file.read_text())
    del state["model"]["type"]
    file.write_text(json.dumps(state))

    shared = SharedTokenizers().of(file)

    assert shared.backend.encode("hi").ids == [104, 105]
    assert not shared.is_qwen2
