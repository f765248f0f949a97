"""What `muxfleet up` notes of a fleet, as if this process ran it."""

import os

from deploy.local.running_fleets import RunningFleet, process_started_s, this_boot


def running_here() -> RunningFleet:
    return RunningFleet(
        name="mine",
        url="http://127.0.0.1:8000",
        address="127.0.0.1:1",
        auth_token="t",
        pid=os.getpid(),
        boot=this_boot(),
        started_s=process_started_s(),
    )
