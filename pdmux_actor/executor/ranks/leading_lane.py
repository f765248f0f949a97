"""A lane of the leading rank of GPUs, which takes the others along."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pdmux_actor.executor.ranks.device_frames import DeviceFrame
from pdmux_actor.executor.ranks.lane_group import LaneGroup
from pdmux_actor.executor.ranks.rank_frames import HeadPass, RankLink

WHOLE_SHARE = -1


@dataclass(slots=True, kw_only=True)
class LeadingLane:
    """`first_core` and `num_cores` are the SMs of the launch that is being enqueued, as frames name them."""

    number: int
    link: RankLink
    group: LaneGroup
    first_core: int = WHOLE_SHARE
    num_cores: int = 0

    @contextmanager
    def together(self, frame: DeviceFrame | HeadPass) -> Iterator[None]:
        """Tells the others what this rank enqueues within it. What fails there ends the unit: the others wait in a sum
        that would never be complete.
        """
        try:
            self.link.tell(frame)
            yield
        except Exception as error:
            self.link.end_unit(f"a launch failed on the leading rank: {type(error).__name__}: {error}")
            raise

    @contextmanager
    def around_head(self, model: str, num_tokens: int) -> Iterator[None]:
        with self.together(HeadPass(self.number, self.first_core, self.num_cores, model, num_tokens)):
            yield
