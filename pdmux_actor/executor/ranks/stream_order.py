"""Keeps the passes of a following rank's lane in order where the share of SMs, and so the stream, changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StreamOrder:
    """The leading rank enqueues a launch when the last one has ended there. Here its last sum may still be on its way,
    and another stream would not wait for it.
    """

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401 - a module, or what answers like it
        """`cuda` is torch.cuda, or whatever answers like it."""
        self._cuda = cuda
        self._last: tuple[Any, Any] | None = None  # stream, and the event behind the last pass

    @contextmanager
    def behind_the_last(self) -> Iterator[None]:
        """Encloses what enqueues a pass on the current stream."""
        stream = self._cuda.current_stream()
        last_stream, ended = self._last or (stream, self._cuda.Event())
        if stream != last_stream:
            stream.wait_event(ended)
        yield
        ended.record(stream)
        self._last = stream, ended
