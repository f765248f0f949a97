"""Threads for calls to the batches' store: a place that hangs (a dead NFS server) takes none that others wait for."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_THREADS = 8
P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batches")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Waits for nothing: a call that hangs would be waited for for ever."""
        self._pool.shutdown(wait=False, cancel_futures=True)
