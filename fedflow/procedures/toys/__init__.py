"""Toy problems of DiSK: students with few parameters, whose minima are counted over many starts."""

from fedflow.procedures.toys.gaussians import Gaussians
from fedflow.procedures.toys.intervals import Intervals

__all__ = ["Gaussians", "Intervals"]
