"""Lets one process at a time change what the cluster of this process runs. Import it only after the environment is set,
as `local_ray`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from deploy.errors import FleetChanging

_NAME, _NAMESPACE = "changing", "muxfleet"
_WAIT_S, _POLL_S = 30.0, 0.2  # a change that Serve takes is given it within seconds


@contextmanager
def sole_change(fleet: str) -> Iterator[None]:
    """Keeps others from changing the fleet between the judging of a change and its making: what somebody agreed to is
    what is made.

    Raises FleetChanging.
    """
    until_s = time.monotonic() + _WAIT_S
    while (holder := _named_actor()) is None:
        if time.monotonic() >= until_s:
            raise FleetChanging(name=fleet, waited_s=_WAIT_S)
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        ray.kill(holder)


def _named_actor() -> Any | None:  # noqa: ANN401  Ray's handles have no type of their own
    """An actor's name is one in the cluster, taken before there is a process for it, and free again when the process
    that asked for it has ended, however that ended. None: it is taken.
    """

    class Holder:  # here: the cluster's workers get the class itself, and need no module of ours
        pass

    try:
        return ray.remote(Holder).options(name=_NAME, namespace=_NAMESPACE, num_cpus=0).remote()
    except ValueError:
        return None
