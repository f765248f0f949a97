"""Green contexts of a GPU of 132 SMs that is not there."""

import time

NUM_SMS = 132


class Clock:
    """`at_s` None: the machine's."""

    at_s = None


def now_s():
    return time.monotonic() if Clock.at_s is None else Clock.at_s


class Event:
    def __init__(self, enable_timing=False, **_):
        self._at_s = None

    def record(self, stream=None):
        self._at_s = now_s()

    def query(self):
        return True

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass

    def elapsed_time(self, end):
        """Milliseconds."""
        return (end._at_s - self._at_s) * 1000.0


class Stream:
    def __init__(self, *_, **__):
        self.cuda_stream = id(self)
        self.device = None

    def synchronize(self):
        pass

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def query(self):
        return True


def get_sm_available(gpu_id):
    return NUM_SMS


def create_greenctx_stream_by_value(prefill_sms, decode_sms, gpu_id):
    assert prefill_sms + decode_sms <= NUM_SMS, f"{prefill_sms} + {decode_sms} SMs of {NUM_SMS}"
    return Stream(), Stream()
