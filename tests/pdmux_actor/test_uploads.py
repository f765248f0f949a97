"""How tensors of a checkpoint come to a device that copies from pinned memory only."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from pdmux_actor.models.uploads import STAGE_BYTES, StagedUpload, copy_in_place, moved


@dataclass(eq=False)
class LateStages:
    """Copies nothing before it is waited for: a stage that is filled too early shows. `pending` is the most at once."""

    made: int = 0
    pending: deque[list[object]] = field(default_factory=deque)
    most_pending: int = 0

    def new_stage(self) -> Tensor:
        self.made += 1
        return torch.empty(STAGE_BYTES, dtype=torch.uint8)

    def send(self, target: Tensor, staged: Tensor) -> list[object]:
        assert target.dtype == staged.dtype
        self.pending.append([target, staged])
        self.most_pending = max(self.most_pending, len(self.pending))
        return self.pending[-1]

    def wait(self, event: list[object]) -> None:
        while any(event is pending for pending in self.pending):
            target, staged = self.pending.popleft()  # a stream's copies are done in order
            target.copy_(staged)


PER_STAGE = STAGE_BYTES // 4


@pytest.mark.parametrize("size", [0, 1, PER_STAGE - 1, PER_STAGE, PER_STAGE + 1, 5 * PER_STAGE + 7])
def test_staged_upload__any_size__all_of_it_is_there_when_it_returns(size: int) -> None:
    stages = LateStages()
    source, target = torch.arange(size, dtype=torch.float32), torch.full((size,), -1.0)

    StagedUpload(stages)(target, source)

    assert torch.equal(target, source)
    assert not stages.pending
    assert stages.most_pending <= 2


def test_staged_upload__other_dtype_and_cut_columns__as_a_plain_copy() -> None:
    stages = LateStages()
    stored = torch.randn(700, 3000)
    source, target = stored[:, 1000:2000], torch.empty(700, 1000, dtype=torch.bfloat16)
    whole = torch.zeros(700, 2000)

    upload = StagedUpload(stages)
    upload(target, source)
    upload(whole[:, :1000], source)

    assert torch.equal(target, source.to(torch.bfloat16))
    assert torch.equal(whole[:, :1000], source)
    assert not whole[:, 1000:].any()
    assert stages.made == 2  # one pair for this thread


def test_staged_upload__scalar_and_empty__are_copied() -> None:
    upload = StagedUpload(LateStages())
    target = torch.zeros(())

    upload(target, torch.tensor(3.5))

    assert target.item() == 3.5


def test_staged_upload__several_threads__have_stages_of_their_own() -> None:
    uploads = [StagedUpload(LateStages()) for _ in range(2)]
    sources = [torch.randn(PER_STAGE // 2 + n) for n in range(2)]
    targets = [torch.zeros_like(source) for source in sources]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: uploads[n](targets[n], sources[n]), range(2)))

    assert all(map(torch.equal, targets, sources))


class Unreadable:
    """A tensor of a file of which one piece cannot be read."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def reshape(self, *_: int) -> "Unreadable":
        return self

    def __getitem__(self, of: slice) -> Tensor:
        if of.start:
            raise OSError("the file system went away")
        return self._tensor[of]


def test_staged_upload__read_that_breaks_off__leaves_no_copy_on_its_way() -> None:
    stages = LateStages()
    source, target = torch.ones(2 * PER_STAGE), torch.zeros(2 * PER_STAGE)

    with pytest.raises(OSError, match="went away"):
        StagedUpload(stages)(target, Unreadable(source))

    assert not stages.pending


def test_moved__where_it_is_already__is_the_tensor_itself() -> None:
    tensor = torch.ones(3)

    assert moved(None, copy_in_place, tensor) is moved(torch.device("cpu"), copy_in_place, tensor) is tensor
