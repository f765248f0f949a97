"""Defines what a model loses to another one of its unit beyond what the throughput estimate expects."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Strains = Mapping[int, Mapping[int, float]]
"""By model, by neighbour: parts of the model's tighter target for each of the neighbour's requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourStrain:
    """`target_part`: of the target that suffers most, for each request per second that the neighbour has on the unit;
    99 % of what is lost stays below it.
    """

    neighbour: str
    target_part: float


def strain_of(parts: Mapping[int, float], strains: Strains) -> float:
    """Returns the part of a target that the model of a unit loses which loses most. `parts`: loads by model."""
    return max((sum(lost.values()) for lost in strains_in(parts, strains).values()), default=0.0)


def strains_in(parts: Mapping[int, float], strains: Strains) -> Strains:
    """Returns parts of targets, by model and neighbour, at the loads of a unit."""
    return {
        model: {other: per_request * parts[other] for other, per_request in of_model.items() if other in parts}
        for model in parts
        if (of_model := strains.get(model)) is not None
    }


def strained(factor: Floats, strain: Floats) -> Floats:
    """The factor by which a load may grow within SLOs if what it takes of them grows by `strain`. What is not positive
    says something else and stays.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(factor > 0, 1.0 / (1.0 / np.maximum(factor, 1e-12) + strain), factor))
