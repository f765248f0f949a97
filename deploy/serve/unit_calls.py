"""Calls to one unit. Serve addresses deployments, so all their replicas are called and the unit meant answers."""

import asyncio
import logging

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from deploy.serve.app_args import UNIT_DEPLOYMENT, units_app

logger = logging.getLogger(__name__)

_TIMEOUT_S = 8.0


async def read_decisions(pool: str, unit_id: str, last: int) -> bytes | None:
    """The unit's LogExcerpt as JSON; None when it does not answer."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            handle = await asyncio.to_thread(serve.get_deployment_handle, UNIT_DEPLOYMENT, units_app(pool))
        calls = handle.broadcast("decisions", unit_id, last)
        answers = await calls.results_async(timeout_s=_TIMEOUT_S, return_exceptions=True)
    except (RayError, RayServeException, TimeoutError) as error:
        logger.warning("unit %s does not tell its decisions: %r", unit_id, error)
        return None
    for answer in answers:
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, BaseException):
            logger.warning("a unit of pool %s does not tell its decisions: %r", pool, answer)
    return None
