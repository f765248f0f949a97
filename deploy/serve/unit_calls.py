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
        logger.warning(
            "a unit does not tell its decisions", extra={"unit": unit_id, "pool": pool, "reason": repr(error)}
        )
        return None
    for answer in answers:
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, BaseException):
            told = {"unit": unit_id, "pool": pool, "reason": repr(answer)}
            logger.warning("a replica of the unit's pool does not tell its decisions", extra=told)
    return None
