"""muxfleet rollout"""

import time
from typing import Annotated

import typer

from deploy.commands.gateway_url import known_url
from deploy.commands.terminal import terminal
from deploy.errors import FleetUnreachable
from deploy.inspection.fleet_report import fleet_report
from deploy.kubernetes.api_server import ApiServer, Document, api_client
from deploy.kubernetes.rolling_update import RollingUpdate
from deploy.kubernetes.settled_fleet import expected_units, what_is_missing


def rollout(
    service: Annotated[str, typer.Argument(metavar="RAYSERVICE", help="Its name.")],
    namespace: Annotated[str, typer.Option(help="Of the RayService.")],
    gateway: Annotated[
        str,
        typer.Option(help="URL of the fleet's gateway, which tells when the fleet is whole.", callback=known_url),
    ],
    timeout: Annotated[
        float, typer.Option(help="Seconds for one pod: its drain, its successor, the models' loads.", min=1, max=1e6)
    ] = 2000.0,
    revision: Annotated[
        str | None,
        typer.Option(help="Begin when the RayService has it: Helm makes Jobs before it changes RayServices."),
    ] = None,
    api_server: Annotated[
        str | None,
        typer.Option(
            help="URL of a Kubernetes API server that asks for nothing, such as `kubectl proxy`'s.", callback=known_url
        ),
    ] = None,
) -> None:
    """Replace the pods of a RayService whose templates changed, one by one, in the running Ray cluster. Each is drained
    first, and none goes while the fleet misses a unit or moves a model. The chart runs it after an upgrade.

    Example: muxfleet rollout fleet-muxfleet --namespace llm --gateway http://fleet-muxfleet-serve-svc:8000
    """
    console = terminal()

    def missing(document: Document) -> str | None:
        try:
            return what_is_missing(fleet_report(gateway), expected_units(document))
        except FleetUnreachable as error:
            return str(error)

    with api_client(api_server, most_s=timeout) as client:
        RollingUpdate(
            ApiServer(client, namespace),
            service,
            revision=revision,
            what_is_missing=missing,
            say=lambda told: console.print(told, soft_wrap=True, highlight=False),
            clock=time.monotonic,
            sleep=time.sleep,
            timeout_s=timeout,
        ).run()
