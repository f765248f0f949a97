"""Defines what the `import_path`s of a rendered Serve config name, on whatever node a Ray worker imports them.

Ray sends a deployment's class by the name of its module. Each class has a module here of its own: a worker that starts
a replica imports that one, with it `claim` has run before any other name of muxfleet is looked up, and a gateway does
not hold what a control loop needs.
"""

# ruff: noqa: E402 - the names below are ours only after `claim`
from muxfleet.own_packages import claim

claim()

from ray.serve import Application

from deploy.serve.app_args import ControlArgs, GatewayArgs, UnitShape
from deploy.serve.serve_applications import control_application, gateway_application, units_application


def build_units(args: UnitShape) -> Application:
    from muxfleet.unit_replica import UnitDeployment

    return units_application(args, unit=UnitDeployment)


def build_control(args: ControlArgs) -> Application:
    assert args == ControlArgs()
    from muxfleet.control_replica import ControlLoopDeployment

    return control_application(controller=ControlLoopDeployment)


def build_gateway(args: GatewayArgs) -> Application:
    from muxfleet.gateway_replica import GatewayDeployment

    return gateway_application(args, gateway=GatewayDeployment)
