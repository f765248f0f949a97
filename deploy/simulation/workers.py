"""Runs tasks in processes of their own, several at a time: each returns what it would have returned here."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Generic, Self, TypeVar

from deploy.errors import OptionNotUsable

Result = TypeVar("Result")
Message = TypeVar("Message")
Tell = Callable[[Message], None]

_MESSAGE, _RESULT, _FAILED = "message", "result", "failed"


class Workers(Generic[Message]):
    """Keeps at most `jobs` processes, forked for a task each: what a task refers to need not be copied. With one job
    the tasks run here, each when its result is asked for. Within a `with`; what still runs at its end is stopped.

    `on_message` hears here what tasks tell.
    """

    def __init__(self, jobs: int, on_message: Tell[Message]) -> None:
        """Raises OptionNotUsable: this system cannot fork processes."""
        if jobs > 1 and "fork" not in multiprocessing.get_all_start_methods():
            raise OptionNotUsable(option="--jobs", value=jobs, remedy="this system forks no processes; take 1")
        self.jobs = jobs
        self._on_message = on_message
        self._queued: deque[Task[Message, object]] = deque()
        self._running: dict[Connection, Task[Message, object]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queued.clear()
        for connection in list(self._running):
            self._stop(connection)

    def submit(self, work: Callable[[Tell[Message]], Result]) -> "Task[Message, Result]":
        """`work` is called once, with what it may tell messages to; its result must be one that can be pickled."""
        task = Task(self, work)
        if self.jobs > 1:
            self._queued.append(task)  # type: ignore[arg-type]  # nothing is given to it: its result is only read
            self._fill()
        return task

    def tell(self, message: Message) -> None:
        self._on_message(message)

    def await_end(self, task: "Task[Message, Result]") -> None:
        """Waits for its process. That has no deadline, as a simulation has none: who loses patience interrupts it."""
        while task.is_under_way:
            for connection in wait(list(self._running)):
                assert isinstance(connection, Connection)
                self._hear(connection)

    def drop(self, task: "Task[Message, Result]") -> None:
        """Its result will not be asked for."""
        if task in self._queued:
            self._queued.remove(task)  # type: ignore[arg-type]  # as above
        for connection in [c for c, running in self._running.items() if running is task]:
            self._stop(connection)
        self._fill()

    def _fill(self) -> None:
        context = multiprocessing.get_context("fork")
        while self._queued and len(self._running) < self.jobs:
            task = self._queued.popleft()
            receiver, sender = context.Pipe(duplex=False)
            task.process = context.Process(target=_carry_out, args=(task.work, sender), daemon=True)
            task.process.start()
            sender.close()
            self._running[receiver] = task

    def _hear(self, connection: Connection) -> None:
        try:
            kind, value = connection.recv()
        except EOFError:  # it was killed
            kind, value = _FAILED, None
        if kind == _MESSAGE:
            self._on_message(value)
            return
        task = self._running[connection]
        task.ended(value, failed=kind == _FAILED)
        self._stop(connection)
        self._fill()

    def _stop(self, connection: Connection) -> None:
        task = self._running.pop(connection)
        connection.close()
        if task.process is not None:
            task.process.terminate()
            task.process.join()  # no deadline: it has been told to end, and nothing in it catches that


class Task(Generic[Message, Result]):
    """Something that was given to `Workers`."""

    def __init__(self, workers: Workers[Message], work: Callable[[Tell[Message]], Result]) -> None:
        self.work = work
        self.process: BaseProcess | None = None
        self.is_under_way = workers.jobs > 1
        self._workers = workers
        self._results: list[Result] = []

    def ended(self, result: Result, *, failed: bool) -> None:
        self.is_under_way = False
        if not failed:
            self._results.append(result)

    def result(self) -> Result:
        """Returns what the work did. What failed in its process is done again here, and so fails as it would have."""
        self._workers.await_end(self)
        if not self._results:
            self._results.append(self.work(self._workers.tell))
        return self._results[0]

    def drop(self) -> None:
        self._workers.drop(self)


def _carry_out(work: Callable[[Tell[Message]], Result], sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is interrupted, and ends it
    try:
        result = work(lambda message: sender.send((_MESSAGE, message)))
    except Exception:  # whatever it is: the work is done again where it can be told
        sender.send((_FAILED, None))
    else:
        sender.send((_RESULT, result))
