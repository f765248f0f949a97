"""Defines what the `import_path`s of a rendered Serve config name, on whatever node a Ray worker imports them.

Ray sends a deployment's class by the name of its module. Each class has a module here of its own: a worker that starts
a replica imports that one, with it `claim` has run before any other name of muxfleet is looked up, and a gateway does
not hold what a control loop needs. A task of Ray's that builds an application imports neither: it would take it about
a second of CPU time at each start of a fleet, before any replica can begin.
"""

# ruff: noqa: E402 - the names below are ours only after `claim`
from muxfleet.own_packages import claim

claim()

from ray.serve import Application

from deploy.serve.app_args import ControlArgs, GatewayArgs, UnitShape


def build_units(args: UnitShape) -> Application:
    from deploy.serve.units_application import units_application

    return units_application(args, replica="muxfleet.unit_replica.UnitDeployment")


def build_control(args: ControlArgs) -> Application:
    assert args == ControlArgs()
    from deploy.serve.control_application import control_application

    return control_application(replica="muxfleet.control_replica.ControlLoopDeployment")


def build_gateway(args: GatewayArgs) -> Application:
    from deploy.serve.gateway_application import gateway_application

    return gateway_application(args, replica="muxfleet.gateway_replica.GatewayDeployment")
