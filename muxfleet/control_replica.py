"""The class of the control loop's replica, by which Ray finds it where it starts one: see `serve_applications`."""

# ruff: noqa: E402 - the names below are ours only after `claim`
from muxfleet.own_packages import claim

claim()

from deploy.serve.controller import Controller
from deploy.serve.replica_calls import keep_calls_on_loopback

keep_calls_on_loopback()


class ControlLoopDeployment(Controller):
    pass
