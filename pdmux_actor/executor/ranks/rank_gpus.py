"""Works out which GPU each rank of a unit has."""

from pdmux_actor.errors import DeviceUnavailable


def gpus_of_ranks(visible: str | None, num_ranks: int) -> tuple[str, ...]:
    """Returns the CUDA_VISIBLE_DEVICES of each rank's process. `visible` is this process's, as Ray set it to what its
    actor asked for; None: the first GPUs of the machine. Raises DeviceUnavailable.

    >>> gpus_of_ranks("3,5", 2)
    ('3', '5')
    """
    gpus = [str(number) for number in range(num_ranks)] if visible is None else [g for g in visible.split(",") if g]
    if len(gpus) < num_ranks:
        raise DeviceUnavailable(
            reason=f"a unit of {num_ranks} ranks has {len(gpus)} GPUs (CUDA_VISIBLE_DEVICES={visible})",
            remedy="set mesh_gpus to how many GPUs a unit can have",
        )
    return tuple(gpus[:num_ranks])
