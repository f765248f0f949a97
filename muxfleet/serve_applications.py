"""Defines what the `import_path`s of a rendered Serve config name, on whatever node a Ray worker imports them.

Ray sends a deployment's class by the name of its module. These classes are of this module, so a worker that starts a
replica imports it, and with it `claim` has run before any other name of muxfleet is looked up.
"""

# ruff: noqa: E402 - the names below are ours only after `claim`
from muxfleet.own_packages import claim

claim()

from ray.serve import Application

from deploy.serve.app_args import ControlArgs, GatewayArgs, UnitShape
from deploy.serve.controller import Controller
from deploy.serve.replica_calls import keep_calls_on_loopback
from deploy.serve.serve_applications import UnitReplica, control_application, gateway_application, units_application
from router.serve_deployment import GatewayIngress

keep_calls_on_loopback()


class UnitDeployment(UnitReplica):
    pass


class GatewayDeployment(GatewayIngress):
    pass


class ControlLoopDeployment(Controller):
    pass


def build_units(args: UnitShape) -> Application:
    return units_application(args, unit=UnitDeployment)


def build_control(args: ControlArgs) -> Application:
    assert args == ControlArgs()
    return control_application(controller=ControlLoopDeployment)


def build_gateway(args: GatewayArgs) -> Application:
    return gateway_application(args, gateway=GatewayDeployment)
