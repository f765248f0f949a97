"""Keeps what a unit has under way of KV: prompts' that its requests wait for, and its own that others ask for."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from pdmux_actor.backends.base import Engine
from pdmux_actor.errors import EngineDied
from pdmux_actor.kv.prefix_kv import PromptStart
from pdmux_actor.messages import GenerateRequest
from pdmux_actor.serving.frames import FetchKv, KvFetched, KvMoved, WeightsName
from pdmux_actor.serving.kv_fetch import fetch_kv

logger = logging.getLogger(__name__)


class KvTransfers:
    """A request whose prompt was computed elsewhere is submitted when its KV has come, or will not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._reads: set[asyncio.Task[None]] = set()

    def fetch(
        self,
        request: GenerateRequest,
        token: str,
        weights: WeightsName,
        on_moved: Callable[[GenerateRequest, KvMoved], None],
    ) -> None:
        """`on_moved` is told of the request as it can be submitted, once, unless it is given up before."""
        task = asyncio.create_task(self._fetch(request, token, weights, on_moved))
        self._fetches[request.request_id] = task
        task.add_done_callback(lambda _: self._fetches.pop(request.request_id, None))

    def give_up(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        if (task := self._fetches.pop(request_id, None)) is not None:
            task.cancel()

    def read(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        """Answers another unit with KV of a model that is here."""
        task = asyncio.create_task(self._read(asked, send))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def stop(self) -> None:
        tasks = [*self._fetches.values(), *self._reads]
        for task in tasks:
            task.cancel()
        if tasks:
            # no deadline: they were cancelled and await nothing that shields itself
            await asyncio.wait(tasks)

    async def _fetch(
        self,
        request: GenerateRequest,
        token: str,
        weights: WeightsName,
        on_moved: Callable[[GenerateRequest, KvMoved], None],
    ) -> None:
        prompt = PromptStart(model=request.model, token_ids=request.prompt_token_ids, cache_salt=request.cache_salt)
        try:
            moved = await fetch_kv(self._engine, prompt, request.kv_from, token, weights)
        except Exception:  # the request is answered all the same
            logger.exception("a prompt's KV cannot be fetched", extra={"generation_id": request.request_id})
            moved = KvMoved(why_not_all="the unit failed on it; its log has the traceback")
        if moved.why_not_all:
            told = {"generation_id": request.request_id, "from": request.kv_from, "reason": moved.why_not_all}
            logger.warning("a prompt's KV is computed anew", extra=told)
        on_moved(replace(request, kv_from=""), moved)

    async def _read(self, asked: FetchKv, send: Callable[[KvFetched], None]) -> None:
        try:
            rows = await self._engine.read_prefix(asked.prompt, asked.first_row)
        except EngineDied:
            rows = None
        send(KvFetched(asked.call, rows))
