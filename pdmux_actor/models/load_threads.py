"""Reads parts of a checkpoint at once, each on a thread with one core's worth of torch."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from pdmux_actor.models.memory_shortage import let_go
from pdmux_actor.models.torch_threads import use_torch_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(work: Callable[[Item], Result], items: Iterable[Item], num_threads: int) -> tuple[Result, ...]:
    """Results in the order of `items`. The first error that is met is raised; what has not begun then is left out, and
    other errors hold nothing of what their calls had made.
    """
    if num_threads == 1:
        return tuple(map(work, items))
    is_inference = torch.is_inference_mode_enabled()  # like torch's number of threads, it is a thread's own
    torch_threads = torch.get_num_threads()

    def worked(item: Item) -> Result:
        with torch.inference_mode(is_inference):
            return work(item)

    pool = ThreadPoolExecutor(num_threads, "read-weights", initializer=use_torch_threads, initargs=(1,))
    futures = [pool.submit(worked, item) for item in items]
    try:
        return tuple([future.result() for future in futures])
    except BaseException as met:
        pool.shutdown(cancel_futures=True)
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None and error is not met:
                let_go(error)
        raise
    finally:
        pool.shutdown()
        torch.set_num_threads(torch_threads)  # also what threads that are new start with
