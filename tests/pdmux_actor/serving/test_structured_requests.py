"""Requests with a form: each reaches the engine with its constraint or is answered, once, whatever compiling does."""

import threading

from pdmux_actor.engine import Inbox
from pdmux_actor.errors import InvalidStructuredOutput
from pdmux_actor.messages import FinishReason, StructuredKind, StructuredOutput
from pdmux_actor.scheduling.events import Abort, Arrival
from pdmux_actor.serving.structured_requests import StructuredRequests

FORM = StructuredOutput(kind=StructuredKind.REGEX, text="a+", param="guided_regex")
PATIENCE_S = 30.0


class Desk:
    """What the requests come to: arrivals and answers, in order."""

    def __init__(self, compile_form, **settings):
        self.answers = []
        self.happened = threading.Semaphore(0)
        self.inbox = Inbox(self.happened.release)
        self.requests = StructuredRequests(compile_form, self.inbox, self._answer, **settings)

    def _answer(self, event):
        self.answers.append(event)
        self.happened.release()

    def wait(self, events=1):
        for _ in range(events):
            assert self.happened.acquire(timeout=PATIENCE_S)

    def arrivals(self):
        return list(self.inbox.due(0.0))


def test_submit__form_compiles__arrives_with_its_constraint(make_request) -> None:
    request = make_request("r")
    desk = Desk(lambda asked, form: (asked.request_id, form))

    desk.requests.submit(request, FORM)
    desk.wait()

    assert desk.arrivals() == [Arrival(request, ("r", FORM))]
    assert desk.answers == []


def test_submit__form_is_invalid_or_our_code_fails__answered_with_the_parameter(make_request) -> None:
    def compile_form(request, form):
        raise InvalidStructuredOutput(reason="position 3") if request.request_id == "bad" else ZeroDivisionError

    desk = Desk(compile_form)
    for name in ("bad", "bug"):
        desk.requests.submit(make_request(name), FORM)
    desk.wait(2)

    reasons = {event.request_id: event.error for event in desk.answers}
    assert {(event.finish, event.param) for event in desk.answers} == {(FinishReason.ERROR, "guided_regex")}
    assert reasons["bad"] == "position 3"
    assert "traceback" in reasons["bug"]
    assert desk.arrivals() == []


def test_submit__forms_that_never_compile__are_answered_in_time_and_what_comes_late_is_dropped(make_request) -> None:
    go_on = threading.Event()
    compiled = threading.Semaphore(0)

    def compile_form(request, form):
        assert go_on.wait(PATIENCE_S)
        compiled.release()

    desk = Desk(compile_form, timeout_s=0.05)
    for i in range(4):  # two are compiled at once, the others wait for a thread
        desk.requests.submit(make_request(f"r{i}"), FORM)
    desk.wait(4)
    go_on.set()
    for _ in range(2):
        assert compiled.acquire(timeout=PATIENCE_S)

    assert {event.request_id for event in desk.answers} == {"r0", "r1", "r2", "r3"}
    assert all("not compiled within" in event.error for event in desk.answers)
    assert desk.arrivals() == []


def test_abort__while_its_form_compiles__is_answered_once(make_request) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def compile_form(request, form):
        begun.set()
        assert go_on.wait(PATIENCE_S)

    desk = Desk(compile_form)
    desk.requests.submit(make_request("r"), FORM)
    assert begun.wait(PATIENCE_S)

    assert desk.requests.abort("r")
    go_on.set()
    assert not desk.requests.abort("r")
    desk.wait()
    assert [event.finish for event in desk.answers] == [FinishReason.ABORT]
    assert desk.arrivals() == []


def test_abort__while_the_request_is_handed_over__comes_behind_it(make_request) -> None:
    desk = Desk(lambda asked, form: None)
    put, handing_over, goes_on = desk.inbox.put, threading.Event(), threading.Event()

    def slow_put(event):
        handing_over.set()
        assert goes_on.wait(PATIENCE_S)
        put(event)

    def abort():
        if not desk.requests.abort("r"):
            put(Abort("r"))

    desk.inbox.put = slow_put
    request = make_request("r")
    desk.requests.submit(request, FORM)
    assert handing_over.wait(PATIENCE_S)
    aborting = threading.Thread(target=abort)
    aborting.start()
    aborting.join(0.1)
    goes_on.set()
    aborting.join(PATIENCE_S)
    desk.wait(2)

    assert desk.arrivals() == [Arrival(request), Abort("r")]
