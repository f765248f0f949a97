"""Work on text by a process that can be killed: what its death or slowness costs the others."""

import asyncio
import time

import psutil
import pytest
from fake_unit import CHAT_TEMPLATE, eventually, write_byte_tokenizer

from router.text import lane as lane_module
from router.text.calls import (
    EncodeChat,
    Encoded,
    EncodeText,
    LoadTokenizer,
    TextAnswer,
    TextCall,
    TextRefused,
    TokenizerFailed,
    TokenizerKey,
    TokenizerLoaded,
)
from router.text.lane import TextLane, TextLaneFull, TextProcess, TextProcessLost, TextTooSlow

KEY = TokenizerKey("a-model", None)
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + CHAT_TEMPLATE


def text_call(text: str) -> EncodeText:
    return EncodeText(0, KEY, text, add_special_tokens=False, max_tokens=100)


class Scripted:
    """Answers with the text's length; "hang" works for ever, "stand" waits for it, "die" ends it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.killed = False
        self._stands = False

    async def ask(self, call: TextCall) -> TextAnswer:
        if self.killed:
            raise TextProcessLost
        if isinstance(call, LoadTokenizer):
            return TokenizerLoaded(0, 256, None, None, None, None, False)
        assert isinstance(call, EncodeText)
        self.asked.append(call.text)
        self._stands = call.text == "stand"
        if call.text in ("hang", "stand"):
            await asyncio.Event().wait()
        if call.text == "die":
            self.killed = True
            raise TextProcessLost
        await asyncio.sleep(0)
        return Encoded(0, len(call.text), [])

    def worked_s(self) -> float:
        return 0.0 if self._stands else time.monotonic()

    def kill(self) -> None:
        self.killed = True


class Lane(TextLane):
    def __init__(self, **limits) -> None:
        self.services: list[Scripted] = []
        values = {"max_waiting": 8, "max_waiting_characters": 1000, "load_timeout_s": 60.0} | limits
        super().__init__(self.another, **values)

    async def another(self) -> Scripted:
        self.services.append(Scripted())
        return self.services[-1]

    async def of(self, text: str, *, limit_s: float = 60.0) -> int:
        answer = await self.answer(text_call(text), characters=len(text), limit_s=limit_s)
        assert isinstance(answer, Encoded)
        return answer.num_tokens


async def test_lane__call_takes_too_long__is_killed_and_those_behind_it_are_answered() -> None:
    lane = Lane()

    hanging = asyncio.create_task(lane.of("hang", limit_s=0.05))
    others = [asyncio.create_task(lane.of("x" * n)) for n in range(3)]

    with pytest.raises(TextTooSlow):
        await hanging
    assert await asyncio.gather(*others) == [0, 1, 2]
    assert [service.killed for service in lane.services] == [True, False]


async def test_lane__process_dies_under_a_call__it_is_tried_once_more_and_the_others_are_answered() -> None:
    lane = Lane()

    dying = asyncio.create_task(lane.of("die"))
    other = asyncio.create_task(lane.of("abc"))

    with pytest.raises(TextProcessLost):
        await dying
    assert await other == 3
    assert [service.asked for service in lane.services] == [["die"], ["die"], ["abc"]]


async def test_lane__process_stands_under_a_call__it_is_tried_once_more_and_not_called_too_slow() -> None:
    """One that is stopped, swapped out, or gets no core: its call is not why."""
    lane = Lane()

    with pytest.raises(TextProcessLost):
        await lane.of("stand", limit_s=0.05)

    assert [service.asked for service in lane.services] == [["stand"], ["stand"]]
    assert [service.killed for service in lane.services] == [True, True]


async def test_lane__process_without_a_core_gets_one_just_then__its_call_is_not_called_too_slow(monkeypatch) -> None:
    monkeypatch.setattr(lane_module, "_IDLE_S", 0.02)

    class Starved(Scripted):
        """Has a core again as soon as its wait has been ended."""

        def __init__(self) -> None:
            super().__init__()
            self.looks = 0

        async def ask(self, call: TextCall) -> TextAnswer:
            if isinstance(call, EncodeText):
                await asyncio.Event().wait()
            return await super().ask(call)

        def worked_s(self) -> float:
            self.looks += 1
            return 0.0 if self.looks <= 2 else time.monotonic()

    class StarvedAtFirst(Lane):
        async def another(self) -> Scripted:
            self.services.append(Scripted() if self.services else Starved())
            return self.services[-1]

    assert await StarvedAtFirst().of("abc") == 3


@pytest.mark.parametrize("limit_s", [2.0, 3600.0], ids=["limit is soon over", "may take long"])
async def test_lane__its_process_is_stopped__the_call_is_answered_by_another(tmp_path, limit_s: float) -> None:
    key = TokenizerKey(str(write_byte_tokenizer(tmp_path / "plain")), None)
    started: list[TextProcess] = []

    async def start() -> TextProcess:
        started.append(await TextProcess.start())
        return started[-1]

    lane = TextLane(start, max_waiting=8, max_waiting_characters=1000, load_timeout_s=60.0)
    assert isinstance(await lane.load(key), TokenizerLoaded)
    psutil.Process(started[0].pid).suspend()

    call = EncodeText(0, key, "abc", add_special_tokens=False, max_tokens=100)
    async with asyncio.timeout(60):
        answer = await lane.answer(call, characters=3, limit_s=limit_s)

    assert isinstance(answer, Encoded)
    assert answer.num_tokens == 3
    assert len(started) == 2
    lane.close()


async def test_lane__full__says_so_at_once() -> None:
    lane = Lane(max_waiting=2)
    waiting = [asyncio.create_task(lane.of("hang", limit_s=0.2)) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(TextLaneFull):
        await lane.of("x")

    await asyncio.gather(*waiting, return_exceptions=True)
    assert await lane.of("xy") == 2


async def test_lane__several_wait__the_least_work_comes_first() -> None:
    lane = Lane()
    first = asyncio.create_task(lane.of("hang", limit_s=0.05))
    await eventually(lambda: lane.services and lane.services[0].asked)
    others = [asyncio.create_task(lane.of("x" * n)) for n in (9, 1, 5)]

    await asyncio.gather(first, *others, return_exceptions=True)

    assert [len(text) for text in lane.services[1].asked] == [1, 5, 9]


async def test_lane__caller_leaves__its_turn_ends_and_passes_on() -> None:
    lane = Lane()
    leaving = asyncio.create_task(lane.of("hang", limit_s=0.1))
    queued = asyncio.create_task(lane.of("never"))
    await eventually(lambda: lane.services and lane.services[0].asked)

    leaving.cancel()
    queued.cancel()

    assert await lane.of("abcd") == 4
    assert all("never" not in service.asked for service in lane.services)


# ---- the process itself ----


@pytest.fixture
async def process():
    started = await TextProcess.start()
    yield started
    started.kill()


async def test_process__template_that_loops__is_stopped_and_the_process_goes_on(process, tmp_path) -> None:
    key = TokenizerKey(str(write_byte_tokenizer(tmp_path / "loops", chat_template=LOOPS)), None)
    plain = TokenizerKey(str(write_byte_tokenizer(tmp_path / "plain")), None)
    for tokenizer in (key, plain):
        assert isinstance(await process.ask(LoadTokenizer(0, tokenizer)), TokenizerLoaded)
    messages = [{"role": "user", "content": "hi"}]

    stopped = await process.ask(EncodeChat(0, key, messages, [], {}, 0.2, 100))
    encoded = await process.ask(EncodeChat(0, plain, messages, [], {}, 60.0, 100))
    counted = await process.ask(EncodeText(0, plain, "x" * 200, add_special_tokens=False, max_tokens=100))
    broken = await process.ask(LoadTokenizer(0, TokenizerKey(str(tmp_path / "nowhere"), None)))

    assert isinstance(stopped, TextRefused)
    assert stopped.too_slow
    assert isinstance(encoded, Encoded)
    assert bytes(encoded.token_ids).decode() == "<user>hi\n<assistant>"
    assert isinstance(counted, Encoded)
    assert (counted.num_tokens, counted.token_ids) == (200, [])
    assert isinstance(broken, TokenizerFailed)
    libraries = {region.path for region in psutil.Process(process.pid).memory_maps()}
    assert not [path for path in libraries if "libtorch" in path], "it needs none, and it would take its memory"


async def test_process__numbers_of_any_size__reach_the_template(process, tmp_path) -> None:
    template = "{{ tools[0].most }} {{ messages[0].tool_calls[0].amount }}"
    key = TokenizerKey(str(write_byte_tokenizer(tmp_path / "numbers", chat_template=template)), None)
    await process.ask(LoadTokenizer(0, key))
    messages = [{"role": "assistant", "content": "", "tool_calls": [{"amount": -(10**30)}]}]

    encoded = await process.ask(EncodeChat(0, key, messages, [{"most": 2**64}], {}, 60.0, 100))

    assert isinstance(encoded, Encoded)
    assert bytes(encoded.token_ids).decode() == f"{2**64} {-(10**30)}"


async def test_process__killed__says_so_to_who_waits() -> None:
    process = await TextProcess.start()
    load = asyncio.create_task(process.ask(LoadTokenizer(0, KEY)))
    await asyncio.sleep(0)
    psutil.Process(process.pid).kill()

    with pytest.raises(TextProcessLost):
        await load
    with pytest.raises(TextProcessLost):
        await process.ask(LoadTokenizer(0, KEY))
    process.kill()


async def test_process__its_gateway_is_gone__ends() -> None:
    process = await TextProcess.start()
    watched = psutil.Process(process.pid)

    process._own.writer.close()

    await eventually(lambda: not watched.is_running() or watched.status() == psutil.STATUS_ZOMBIE)
    process.kill()
