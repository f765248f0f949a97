"""Removes what nobody keeps any longer: files past their time, and batches that ended as long ago."""

import logging
import time
from collections import defaultdict

from router.batches.kept_batches import KeptBatches
from router.batches.kept_files import KeptFiles

logger = logging.getLogger(__name__)


def remove_expired(batches: KeptBatches, files: KeptFiles, keep_s: float | None) -> None:
    """Leaves what open batches still read. Blocks; several replicas may do it at once."""
    needed: defaultdict[str, set[str]] = defaultdict(set)
    for owner, batch_id in batches.open_batches():
        request = batches.request(owner, batch_id)
        if request is not None:
            needed[owner].add(request.input_file_id)
    num_files = num_batches = 0
    for owner in batches.owners():
        num_files += files.remove_expired(owner, needed[owner])
        if keep_s is not None:
            num_batches += batches.forget_ended(owner, before_s=time.time() - keep_s)
    if num_files or num_batches:
        logger.info("removed what has expired", extra={"files": num_files, "batches": num_batches})
