"""Requests whose outputs have a form, on their way to the engine: the form is compiled beside the loop, never on it."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from pdmux_actor.engine import Inbox
from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.messages import FinishReason, GenerateRequest, StructuredOutput, TokenEvent
from pdmux_actor.scheduling.events import Arrival
from pdmux_actor.scheduling.output_constraint import OutputConstraint

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 20.0  # from a request's arrival
NUM_THREADS = 2  # one form that takes long must not hold all others up

Compile = Callable[[GenerateRequest, StructuredOutput], OutputConstraint]
"""Raises InvalidStructuredOutput."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: GenerateRequest
    form: StructuredOutput
    due_s: float


class StructuredRequests:
    """Every request that is submitted reaches the inbox or is answered, once, within `timeout_s`."""

    def __init__(
        self,
        compile_form: Compile,
        inbox: Inbox,
        answer: Callable[[TokenEvent], None],
        *,
        timeout_s: float = COMPILE_TIMEOUT_S,
    ) -> None:
        self._compile = compile_form
        self._inbox = inbox
        self._answer = answer
        self._timeout_s = timeout_s
        self._waiting: dict[str, _Waiting] = {}  # in the order they came; whoever takes one out answers it
        self._orders: SimpleQueue[_Waiting] = SimpleQueue()
        self._came = threading.Event()
        self._handing_over = threading.Lock()  # an abort comes before that or after: behind the Arrival in the inbox
        self._started = False

    def submit(self, request: GenerateRequest, form: StructuredOutput) -> None:
        """Is called from one thread, as `abort`."""
        if not self._started:
            self._started = True
            for target in [*[self._work] * NUM_THREADS, self._keep_time]:
                threading.Thread(target=target, name="compile-form", daemon=True).start()
        waiting = _Waiting(request, form, time.monotonic() + self._timeout_s)
        self._waiting[request.request_id] = waiting
        self._orders.put(waiting)
        self._came.set()

    def abort(self, request_id: str) -> bool:
        """False: it does not wait here."""
        with self._handing_over:
            waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._answer(TokenEvent(request_id=request_id, finish=FinishReason.ABORT))
        return waiting is not None

    def _work(self) -> None:
        while True:
            # no deadline: idle until somebody asks for a form
            waiting = self._orders.get()
            if waiting.request.request_id not in self._waiting:
                continue
            try:
                constraint = self._compile(waiting.request, waiting.form)
            except InvalidStructuredOutput as invalid:
                self._refuse(waiting, invalid.reason)
            except Exception:  # this request's only
                logger.exception("a form cannot be compiled")
                self._refuse(waiting, "the unit failed on it; its log has the traceback")
            else:
                with self._handing_over:
                    if self._waiting.pop(waiting.request.request_id, None) is not None:
                        self._inbox.put(Arrival(waiting.request, constraint))

    def _keep_time(self) -> None:
        while True:
            oldest = next(iter(self._waiting.copy().values()), None)
            if oldest is None:
                # no deadline: nobody waits
                self._came.wait()
                self._came.clear()
            elif (rest_s := oldest.due_s - time.monotonic()) > 0:
                time.sleep(rest_s)
            else:
                self._refuse(oldest, f"it is not compiled within {self._timeout_s:.0f} s; ask for a smaller one")

    def _refuse(self, waiting: _Waiting, reason: str) -> None:
        request_id = waiting.request.request_id
        if self._waiting.pop(request_id, None) is not None:
            self._answer(
                TokenEvent(request_id=request_id, finish=FinishReason.ERROR, error=reason, param=waiting.form.param)
            )
