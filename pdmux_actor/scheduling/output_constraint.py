"""Keeps a sequence's output in a form, as the scheduler sees it: executors ask it before each token."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class OutputConstraint(Protocol):
    """Constrains one sequence. It follows the sequence's tokens by itself: what was preempted goes on where it was."""

    def fill_mask(self, token_ids: Sequence[int], words: npt.NDArray[np.int32]) -> None:
        """Sets the bits of the tokens that may follow `token_ids`, prompt and output; bit i of word w is token 32w + i.

        `token_ids` only grow from call to call.
        """
        ...

    def simulated_token(self, token_ids: Sequence[int], made_up: int) -> int:
        """Returns what a simulated model says after `token_ids`: what may follow and soon ends the output, or `made_up`
        where the form leaves text free. They only grow here, too.
        """
        ...
