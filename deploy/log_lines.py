"""Sends what the product logs to where its replicas' output is collected, as JSON lines."""

import logging
import sys
from collections.abc import Mapping
from typing import TextIO

from ray import serve

from deploy.environment import otlp_endpoint
from deploy.otlp_log import otlp_records
from pdmux_actor.serving.engine_log import JsonLines

_PRODUCT = ("deploy", "pdmux_actor", "placement", "profiler", "router", "traces")


def write_log_lines(stream: TextIO, fields: Mapping[str, str]) -> logging.Handler:
    """Sends what muxfleet's packages log, from INFO on, to `stream`, and to no handler of others."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(fields))
    _listen(handler)
    return handler


def _listen(handler: logging.Handler) -> None:
    for name in _PRODUCT:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def log_from_replica(**fields: str) -> None:
    """Sets up logging in a replica's constructor: Ray keeps the standard output of each in a file (`worker-*.out`) of
    its session. Serve puts an object of its own in the place of `sys.stdout`, which would make text of the lines. Where
    the environment names a collector, the records go there, too.
    """
    context = serve.get_replica_context()
    told = {"deployment": context.deployment, "replica": context.replica_id.unique_id, **fields}
    write_log_lines(sys.__stdout__ or sys.stdout, told)
    if (endpoint := otlp_endpoint()) is not None:
        records = otlp_records(endpoint, service=f"muxfleet-{context.deployment.lower()}", fields=told)
        if records is not None:
            _listen(records)
