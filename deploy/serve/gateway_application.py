"""The gateway's Serve application."""

from ray.serve import Application

from deploy.environment import otlp_endpoint
from deploy.log_lines import log_from_replica
from deploy.serve.app_args import CONTROL_APP, CONTROLLER_DEPLOYMENT, GATEWAY_DEPLOYMENT, GatewayArgs
from deploy.serve.gateway_settings import BatchesHere, KeysOfFile
from deploy.serve.replica_deployment import replica_deployment
from router.batches.batch_settings import BatchSettings
from router.limits import GatewayLimits


def gateway_application(args: GatewayArgs, *, replica: str) -> Application:
    """Raises OpenCluster."""
    return replica_deployment(GATEWAY_DEPLOYMENT, replica).bind(
        controller_deployment=CONTROLLER_DEPLOYMENT,
        controller_app=CONTROL_APP,
        limits=gateway_limits(args),
        read_keys=None if args.api_keys is None else KeysOfFile(path=args.api_keys),
        logs_requests=args.request_log,
        start_log=log_from_replica,
        otlp_endpoint=otlp_endpoint,
        cors_origins=args.cors_origins,
        batches=batches_here(args),
        has_console=args.console,
    )


def gateway_limits(args: GatewayArgs) -> GatewayLimits:
    return GatewayLimits(
        max_body_bytes=args.max_body_bytes,
        max_queued=args.max_queued_requests,
        hold_s=args.hold_s,
        template_timeout_s=args.template_timeout_s,
        suspect_s=args.unit_suspect_s,
        lost_s=args.unit_lost_s,
    )


def batches_here(args: GatewayArgs) -> BatchesHere:
    section = args.batches
    return BatchesHere(
        args.name,
        BatchSettings(
            url=section.folder or "",
            max_file_bytes=section.max_file_bytes,
            max_lines=section.max_lines,
            max_line_bytes=args.max_body_bytes,
            lines_at_once=section.lines_at_once,
            keep_s=section.keep_days * 86400 or None,
            max_key_bytes=section.max_key_bytes,
        ),
    )
