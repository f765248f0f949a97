"""Says what is wrong with the roles of a fleet file's pools."""

from collections.abc import Iterator, Sequence
from typing import Literal

from deploy.fleet_file.fleet_problems import Problem
from pdmux_actor.backends.registry import BACKENDS

Role = Literal["prefill", "decode"]


def role_problems(roles: Sequence[Role | None], moves_kv: Sequence[bool]) -> Iterator[Problem]:
    """Each has one entry per pool; `moves_kv`: KV of its units can go to other units, and come from there."""
    if not any(roles):
        return
    able = ", ".join(
        f"backend {name} on {' or '.join(entry.moves_kv_on)}" for name, entry in BACKENDS.items() if entry.moves_kv_on
    )
    wanting = {"prefill": "decode", "decode": "prefill"}
    for i, (role, moves) in enumerate(zip(roles, moves_kv, strict=True)):
        path = ("pools", i, "role")
        if role is None:
            remedy = "other pools have a role, and this one has none; set prefill or decode here, or remove theirs"
            yield Problem(path=path, value=None, remedy=remedy)
        elif not moves:
            remedy = f"KV of these units cannot be moved; only that of {able} with mesh_gpus 1; remove it"
            yield Problem(path=path, value=role, remedy=remedy)
        elif wanting[role] not in roles:
            remedy = f"no pool has role {wanting[role]}; give one that role, or remove this one"
            yield Problem(path=path, value=role, remedy=remedy)
